"""Run one training step as a graph of TensorFlow, and many of them in one graph execution.

`GraphTrainSteps.run_many` calls ``model.train_step`` in a ``tf.while_loop`` and collects the
results of each step. The loop runs in TensorFlow's executor instead of Python, which is several
times faster than one call per batch for small models. The results are the same, bit for bit,
because both use the same traced step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import tensorflow as tf

from detcore.errors import InvalidModelError
from detcore_keras.backends.backend import RECORD_IDS, EvaluationOutputs, test_batches
from detcore_keras.backends.graph_batches import batch_records, without_optionals

if TYPE_CHECKING:
    import numpy.typing as npt

    from detcore_keras.backends.backend import TrainingData


class KerasGraphs(Protocol):
    """The differences between Keras 2 and Keras 3 in graphs; see `TensorFlowBackend`."""

    keras: Any

    def build_ahead(self, model: Any, element_spec: Any) -> None:
        """Create the variables of the optimizer and the metrics, as the first step would."""

    def trained_as_compiled(self, model: Any) -> contextlib.AbstractContextManager[None]:
        """Train the variables within the block that Keras trains inside ``fit``."""

    def finish_step(self, model: Any, kind: str, outputs: Any) -> None:
        """Do what Keras does after a step, in the graph."""

    def convert_step(self, run_step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a step as ``tf.function`` should trace it."""

    def warn_of_unsaved_generators(self, graph: Any) -> None:
        """Warn about random operations in a training step whose state cannot be saved."""


class GraphTrainSteps:
    """The model's training step, traced once for its data; see `detcore_keras.backends.backend`.

    Args:
        graphs: The rules of Keras 2 or Keras 3.
        model: The compiled model.
        data: The training data. `fetch_batch` and `split` run in the graph.
        class_weight: Factor of the loss for each class, or None.
        may_compile: Whether XLA may compile the step if the model requests it.
    """

    def __init__(
        self,
        graphs: KerasGraphs,
        model: Any,
        data: TrainingData,
        *,
        class_weight: Mapping[int, float] | None = None,
        may_compile: bool = True,
    ) -> None:
        self._graphs = graphs
        self._model = model
        self._data = data
        self._weigh = class_weighted(graphs.keras, class_weight) if class_weight else None
        self._train = _make_step(graphs, model, "train", may_compile=may_compile)
        self.is_built = not model.run_eagerly
        self._step: Any = None
        self._outputs: Mapping[str, Any] = {}
        self._one: Any = None
        self._many: Any = None

    def trace_step(self) -> None:
        """Trace the step without running it. The trace creates model and optimizer variables.

        Does nothing for a model that runs eagerly, whose first step creates the variables.

        Raises:
            InvalidModelError: If ``train_step`` does not return a dict of tensors.
        """
        if self._step is not None or self._model.run_eagerly:
            return
        with self._graphs.trained_as_compiled(self._model):
            self._graphs.build_ahead(self._model, self._data.element_spec)
            step = tf.function(self._run_step, autograph=False, reduce_retracing=True)
            concrete = step.get_concrete_function(self._data.element_spec)
        self._graphs.warn_of_unsaved_generators(concrete.graph)
        self._outputs = concrete.structured_outputs
        self._step = step

    @property
    def slow_reason(self) -> str | None:
        """Why the steps cannot run many at a time: the outputs of many steps must stack."""
        if not self.is_built:
            return "the model is compiled with run_eagerly"
        can_stack = all(
            (name == RECORD_IDS or spec.shape.is_fully_defined())
            for name, spec in self._outputs.items()
        )
        return None if can_stack else "train_step returns values whose shape changes"

    def settle(self) -> None:
        """Do nothing: TensorFlow's variables always hold the state."""

    def run_one(self, inputs: Any, index: int) -> dict[str, Any]:
        """Train on one batch, and return the results of the step as tensors."""
        if self._model.run_eagerly:
            return self._run_step(self._data.fetch_batch(inputs, tf.constant(index)))
        if self._one is None:
            self._one = self._make_function(
                lambda inputs, index: self._step(self._data.fetch_batch(inputs, index))
            )
        result: dict[str, Any] = self._one(inputs, tf.constant(index))
        return result

    def run_many(self, inputs: Any, count: int) -> dict[str, npt.NDArray[Any]]:
        """Train on the first `count` batches of a block, in one graph execution.

        Returns:
            The values of each output of the step, ``(count, ...)``. Record ids are flat,
            ``(sum of the batch sizes,)``.
        """
        if self._many is None:
            self._many = self._make_function(self._loop_steps)
        return {
            name: value.numpy() for name, value in self._many(inputs, tf.constant(count)).items()
        }

    def _run_step(self, data: Any) -> dict[str, Any]:
        """Run the step on a fetched batch. Return its outputs and the extra outputs of `split`."""
        extra: Mapping[str, Any] = {}
        if self._data.split is not None:
            extra, data = self._data.split(data)
        if self._weigh is not None:
            data = self._weigh(data)
        return {**self._train(without_optionals(data)), **extra}

    def _make_function(self, function: Callable[[Any, Any], Any]) -> Any:
        """Return a graph function of a block and a number, traced once for every batch size."""
        graph_function = tf.function(function, autograph=False, reduce_retracing=True)
        spec = self._data.inputs_spec
        if spec is not None:  # calls with concrete tensors find this trace
            graph_function.get_concrete_function(spec, tf.TensorSpec((), tf.int32))
        return graph_function

    def _loop_steps(self, inputs: Any, count: Any) -> dict[str, Any]:
        arrays = {
            name: tf.TensorArray(
                spec.dtype,
                size=count,
                element_shape=spec.shape,
                infer_shape=spec.shape.is_fully_defined(),
            )
            for name, spec in self._outputs.items()
        }

        def body(index: Any, arrays: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            outputs = self._step(self._data.fetch_batch(inputs, index))
            updated_arrays = {name: arrays[name].write(index, outputs[name]) for name in arrays}
            return index + 1, updated_arrays

        _, arrays = tf.while_loop(lambda index, _: index < count, body, (tf.constant(0), arrays))
        return {
            name: array.concat() if name == RECORD_IDS else array.stack()
            for name, array in arrays.items()
        }


class GraphTestSteps:
    """The test step of a model, traced once for its data; see `detcore_keras.backends.backend`.

    Args:
        graphs: The rules of Keras 2 or Keras 3.
        model: The compiled model.
        element_spec: Nested ``tf.TypeSpec`` of one batch.
    """

    def __init__(self, graphs: KerasGraphs, model: Any, element_spec: Any) -> None:
        self._outputs: Mapping[str, Any] = {}
        self._step: Any = _make_step(graphs, model, "test")
        if model.run_eagerly:
            return
        self._outputs = self._step.get_concrete_function(element_spec).structured_outputs
        self._all = tf.function(self._loop_steps, autograph=False, reduce_retracing=True)

    @property
    def can_run_all(self) -> bool:
        """Whether a graph can loop over the step, because each output has a fixed shape."""
        return bool(self._outputs) and all(
            spec.shape.is_fully_defined() for spec in self._outputs.values()
        )

    def run_all(self, iterator: Any, limit: int) -> EvaluationOutputs:
        """Test on the rest of an iterator, at most `limit` batches."""
        count, records, outputs = self._all(iterator, tf.constant(limit, tf.int64))
        return EvaluationOutputs(outputs if int(count) else {}, int(count), int(records))

    def run_each(
        self, batches: Iterable[Any], limit: int, callbacks: Sequence[Any]
    ) -> EvaluationOutputs:
        """Test the same batches one at a time, with the callbacks' batch-level test hooks."""
        return test_batches(
            self._step,
            lambda batch: int(batch_records(batch)),
            batches,
            limit=limit,
            callbacks=callbacks,
        )

    def _loop_steps(self, iterator: Any, limit: Any) -> Any:
        zeros = {name: tf.zeros(spec.shape, spec.dtype) for name, spec in self._outputs.items()}

        def has_batch(count: Any, records: Any, batch: Any, outputs: Any) -> Any:
            return tf.logical_and(count < limit, batch.has_value())

        def body(count: Any, records: Any, batch: Any, outputs: Any) -> Any:
            value = batch.get_value()
            outputs = self._step(value)
            records += tf.cast(batch_records(value), tf.int64)
            following = tf.cond(count + 1 < limit, iterator.get_next_as_optional, lambda: batch)
            return count + 1, records, following, outputs

        zero = tf.constant(0, tf.int64)
        first = iterator.get_next_as_optional()
        count, records, _, outputs = tf.while_loop(has_batch, body, (zero, zero, first, zeros))
        return count, records, outputs


def class_weighted(keras: Any, class_weight: Mapping[int, float]) -> Callable[[Any], Any]:
    """Return a graph function that turns class weights into sample weights.

    As in Keras, classes are integers or one-hot rows, a class without a weight has weight 1, and
    existing sample weights are multiplied.
    """
    size = max(int(label) for label in class_weight) + 1
    factors = [float(class_weight.get(label, 1.0)) for label in range(size + 1)]

    def add_weights(data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if not isinstance(y, tf.Tensor):
            raise InvalidModelError(
                "class_weight requires a model with one output, but this model's targets are "
                f"{type(y).__name__}.\nReturn sample weights with the data instead."
            )
        if y.shape.rank is not None and y.shape.rank >= 2 and y.shape[-1] != 1:
            labels = tf.argmax(y, axis=-1, output_type=tf.int32)
        else:
            flat = tf.squeeze(y, axis=-1) if y.shape.rank is not None and y.shape.rank >= 2 else y
            rounded = tf.round(flat) if flat.dtype.is_floating else flat
            labels = tf.cast(rounded, tf.int32)
        weights = tf.gather(tf.constant(factors, tf.float32), tf.minimum(labels, size))
        if sample_weight is not None:
            weights = tf.cast(weights, sample_weight.dtype) * tf.reshape(
                sample_weight, tf.shape(weights)
            )
        return x, y, weights

    return add_weights


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]  # TensorFlow
def flat_tensors(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten metrics that are dicts; Keras reports their parts by their own names."""
    flat: dict[str, Any] = {}
    for name, value in outputs.items():
        if isinstance(value, Mapping):
            flat.update(flat_tensors(value))
        else:
            flat[name] = tf.convert_to_tensor(value)
    return flat


def _make_step(
    graphs: KerasGraphs, model: Any, kind: Literal["train", "test"], *, may_compile: bool = True
) -> Any:
    """Return a function that runs a step on a batch, as a graph unless the model runs eagerly.

    Raises:
        InvalidModelError: When the step is traced or run, if ``train_step`` or ``test_step`` does
            not return a dict of tensors.
    """

    def run_step(batch: Any) -> Any:
        outputs = getattr(model, f"{kind}_step")(without_optionals(batch))
        if not isinstance(outputs, Mapping):
            raise InvalidModelError(
                f"{type(model).__name__}.{kind}_step returned {type(outputs).__name__}, not a "
                "dict.\nMetrics need names.\n"
                "Return a dict such as {'loss': loss}, or the result of self.compute_metrics(...)."
            )
        outputs = flat_tensors(outputs)
        graphs.finish_step(model, kind, outputs)
        return outputs

    if model.run_eagerly:
        return run_step
    step = graphs.convert_step(run_step)
    # Only the step is compiled. XLA cannot compile surrounding operations, such as hashes.
    jit = getattr(model, "jit_compile", None) if may_compile else False
    return tf.function(step, reduce_retracing=True, jit_compile=jit)
