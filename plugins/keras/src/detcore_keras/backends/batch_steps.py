"""Train and test batch by batch, for back ends whose steps are functions of Python."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore.errors import InvalidModelError
from detcore_keras.backends.backend import (
    Backend,
    EvaluationOutputs,
    TrainingData,
    test_batches,
)
from detcore_keras.nested import flatten, map_structure

if TYPE_CHECKING:
    from detcore_keras.backends.backend import Collective

# Runs a step on a batch, and returns the results of the step.
RunStep: TypeAlias = Callable[[Any], Any]


class BatchBackend(Backend):
    """A back end whose steps are functions of Python."""

    @abc.abstractmethod
    def make_step(
        self, model: Any, kind: Literal["train", "test"], collective: Collective | None = None
    ) -> RunStep:
        """Return the model's training step or test step.

        Args:
            model: The compiled model.
            kind: Which step.
            collective: Sums of gradients; None for a single worker.
        """

    def settle(self, model: Any) -> None:
        """Make a model's variables hold the state after the last step."""
        return

    def make_train_steps(
        self,
        model: Any,
        data: TrainingData,
        *,
        class_weight: Mapping[int, float] | None,
        collective: Collective | None,
    ) -> BatchTrainSteps:
        """Return the training step."""
        return BatchTrainSteps(self, model, data, class_weight, collective)

    def make_test_steps(self, model: Any, element_spec: Any) -> BatchTestSteps:
        """Return the test step."""
        return BatchTestSteps(self, model)


class BatchTrainSteps:
    """The model's training step; see `detcore_keras.backends.backend`.

    Args:
        backend: The back end.
        model: The compiled model.
        data: The training data.
        class_weight: Factor of the loss for each class, or None.
        collective: Sums of gradients; None for a single worker.
    """

    def __init__(
        self,
        backend: BatchBackend,
        model: Any,
        data: TrainingData,
        class_weight: Mapping[int, float] | None,
        collective: Collective | None,
    ) -> None:
        self._backend = backend
        self._model = model
        self._data = data
        self._class_weight = class_weight
        self._collective = collective
        self._step: RunStep | None = None
        # Keras builds the optimizer of `compile`. Others are built when the first step uses them.
        optimizers: list[Any] = [
            value for value in vars(model).values() if isinstance(value, backend.optimizer_types)
        ]
        self.is_built = all(item.built or item is model.optimizer for item in optimizers)
        self.slow_reason: str | None = f"the {backend.name!r} back end runs each step on its own"

    def trace_step(self) -> None:
        """Create the variables, as Keras does when ``fit`` begins."""
        if self._step is None:
            spec = map_structure(self._make_symbol, self._data.element_spec)
            self._model._symbolic_build(data_batch=spec)
            self._step = self._backend.make_step(self._model, "train", self._collective)

    def run_one(self, inputs: Any, index: int) -> dict[str, Any]:
        """Train on one batch, and return the results of the step as tensors."""
        assert self._step is not None  # the controller traces the step first
        data = self._data.fetch_batch(inputs, index)
        extra: Mapping[str, Any] = {}
        if self._data.split is not None:
            extra, data = self._data.split(data)
        outputs = self._step(self.weigh_batch(convert_batch(self._backend, data)))
        return {**flatten_outputs(self._model, "train", outputs), **extra}

    def weigh_batch(self, data: Any) -> Any:
        """Return a batch with class weights as sample weights."""
        if self._class_weight is None:
            return data
        return weigh_classes(self._backend.keras, data, self._class_weight)

    def settle(self) -> None:
        """Make the model's variables hold the state after the last step."""
        self._backend.settle(self._model)

    def run_many(self, inputs: Any, count: int) -> dict[str, npt.NDArray[Any]]:
        """Raise an error, because `slow_reason` is set."""
        raise NotImplementedError

    def _make_symbol(self, spec: Any) -> Any:
        if spec is None:
            return None
        dtype = self._backend.keras.backend.standardize_dtype(spec.dtype)
        # A model with a fixed batch size, such as a stateful one, takes no other.
        inputs = getattr(self._model, "inputs", None) or ()
        size = next((tensor.shape[0] for tensor in inputs), None)
        return self._backend.keras.KerasTensor((size, *spec.shape[1:]), dtype)


class BatchTestSteps:
    """The test step of a model; see `detcore_keras.backends.backend`.

    Args:
        backend: The back end.
        model: The compiled model.
    """

    can_run_all = False

    def __init__(self, backend: BatchBackend, model: Any) -> None:
        self._backend = backend
        self._model = model
        self._step = backend.make_step(model, "test")

    def run_all(self, iterator: Any, limit: int) -> EvaluationOutputs:
        """Raise an error, because `can_run_all` is false."""
        raise NotImplementedError

    def run_each(
        self, batches: Iterable[Any], limit: int, callbacks: Sequence[Any]
    ) -> EvaluationOutputs:
        """Test batches one at a time, with the callbacks' batch-level test hooks."""

        def run_step(batch: Any) -> Mapping[str, Any]:
            return flatten_outputs(self._model, "test", self._step(batch))

        return test_batches(
            run_step,
            lambda batch: self._backend.count_records([p for p in flatten(batch) if p is not None]),
            (convert_batch(self._backend, batch) for batch in batches),
            limit=limit,
            callbacks=callbacks,
        )


def convert_batch(backend: Backend, batch: Any) -> Any:
    """Return a batch with the parts that a step of the back end takes."""
    return map_structure(lambda part: None if part is None else backend.as_batch_part(part), batch)


def flatten_outputs(model: Any, kind: str, outputs: Any) -> dict[str, Any]:
    """Flatten the results of a step; Keras reports the parts of a dict by their own names.

    Raises:
        InvalidModelError: If the results are not a dict.
    """
    if not isinstance(outputs, Mapping):
        raise InvalidModelError(
            f"{type(model).__name__}.{kind}_step returned {type(outputs).__name__}, not a dict.\n"
            "Metrics need names.\n"
            "Return a dict such as {'loss': loss}, or the result of self.compute_metrics(...)."
        )
    flat: dict[str, Any] = {}
    for name, value in outputs.items():
        if isinstance(value, Mapping):
            flat.update(flatten_outputs(model, kind, value))
        else:
            flat[name] = value
    return flat


def weigh_classes(keras: Any, data: Any, class_weight: Mapping[int, float]) -> Any:
    """Turn class weights into sample weights.

    As in Keras, classes are integers or one-hot rows, a class without a weight has weight 1, and
    existing sample weights are multiplied.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    if not hasattr(y, "shape"):
        raise InvalidModelError(
            "class_weight requires a model with one output, but this model's targets are "
            f"{type(y).__name__}.\nReturn sample weights with the data instead."
        )
    targets = keras.ops.convert_to_numpy(y)
    if targets.ndim >= 2 and targets.shape[-1] != 1:
        labels = targets.argmax(axis=-1)
    else:
        labels = np.round(targets[..., 0] if targets.ndim >= 2 else targets).astype(np.int64)
    weights = np.ones(labels.shape, keras.config.floatx())
    for label, factor in class_weight.items():
        weights[labels == label] = factor
    if sample_weight is not None:
        weights *= keras.ops.convert_to_numpy(sample_weight).reshape(weights.shape)
    return x, y, weights
