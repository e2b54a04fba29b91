"""Define the interface of Keras's back ends, with what all back ends of Keras 3 share."""

from __future__ import annotations

import abc
import dataclasses
import inspect
import logging
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from detcore.errors import InvalidDataTypeError, InvalidExperimentError

if TYPE_CHECKING:
    from detcore.core import DistributedContext
    from detcore.errors import DistributedError
    from detcore.types import GradientSettings

# Key under which a step returns the number of records in its batch.
RECORD_COUNT = "detcore/record_count"
# Key of the ids of the batch's records.
RECORD_IDS = "detcore/record_ids"
# Attribute of an optimizer's class with the sums of gradients between two updates.
SUMS_OF_GRADIENTS = "_detcore_sums_of_gradients"


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluationOutputs:
    """Result of a pass over data.

    Attributes:
        outputs: Outputs of the last step; empty without a batch.
        num_batches: Number of batches.
        n_records: Number of records in the batches.
    """

    outputs: Mapping[str, Any]
    num_batches: int
    n_records: int


class TrainingData(Protocol):
    """The part of a `Feed` that training steps use; see there."""

    in_graph: bool
    element_spec: Any
    inputs_spec: Any
    split: Callable[[Any], tuple[Mapping[str, Any], Any]] | None

    def peek_block(self) -> Any:
        """Return the inputs of a batch, like a block, without consuming the batch."""

    def fetch_batch(self, inputs: Any, index: Any) -> Any:
        """Return batch `index` of a block."""


class TrainSteps(Protocol):
    """The training step of a model, for its data.

    Attributes:
        is_built: Whether `trace_step` creates all variables, rather than the first step.
    """

    is_built: bool

    @property
    def slow_reason(self) -> str | None:
        """Return why the steps cannot run many at a time; None if they can."""

    def trace_step(self) -> None:
        """Prepare the step without running it. Creates all variables if `is_built`."""

    def run_one(self, inputs: Any, index: int) -> dict[str, Any]:
        """Train on one batch of a block, and return the results of the step."""

    def run_many(self, inputs: Any, count: int) -> dict[str, npt.NDArray[Any]]:
        """Train on the first `count` batches of a block. Return the results, stacked."""

    def settle(self) -> None:
        """Make the model's variables hold the state after the last step."""


class EvaluationSteps(Protocol):
    """The test step of a model, for its data."""

    @property
    def can_run_all(self) -> bool:
        """Whether `run_all` can be used."""

    def run_all(self, iterator: Any, limit: int) -> EvaluationOutputs:
        """Test on the rest of an iterator, at most `limit` batches."""

    def run_each(
        self, batches: Iterable[Any], limit: int, callbacks: Sequence[Any]
    ) -> EvaluationOutputs:
        """Test the same batches one at a time, with the callbacks' batch-level test hooks."""


class Collective(Protocol):
    """Sums of gradients over the workers.

    All workers make the same calls in the same order.

    Attributes:
        size: Number of workers.
        failure: Error after which no sum can succeed, if the error that a graph raised hides it.
    """

    size: int
    failure: DistributedError | None

    def sum_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the sums over the workers, in few messages.

        Called eagerly, or while a function is traced, also inside a branch of ``tf.cond`` or the
        body of a loop. The enclosing name scope is the same on all workers, and differs for each
        call within a graph.

        Args:
            gradients: Dense tensors, with the same shapes and types on all workers.
        """


class Backend(abc.ABC):
    """A back end of Keras: how variables are kept, and how steps, generators and batches work.

    "Variable" is a value that `get_raw` returns. Methods without a comment in a subclass do what
    is right for the variables of Keras 3.

    Args:
        keras: The module that the user's code uses.

    Attributes:
        name: Name of the back end, as in ``KERAS_BACKEND``.
        keras_major: Major version of Keras.
        step_arguments: Arguments of ``train_step`` and ``test_step``.
        end_errors: Errors that a step raises if its data has ended.
        optimizer_types, generator_types, container_types: Classes of objects with variables;
            `container_types` are searched for variables.
        not_state: Attributes that no training changes.
        compiles_variables: Whether a compiled step keeps the first values of variables outside the
            model.
        legacy_advice: End of the message if weights of Keras 2 do not fit a model.
    """

    name: ClassVar[str]
    keras_major: ClassVar[int] = 3
    step_arguments: ClassVar[tuple[str, ...]] = ("data",)
    end_errors: tuple[type[Exception], ...] = (StopIteration,)
    not_state: ClassVar[frozenset[str]] = frozenset()
    compiles_variables: ClassVar[bool] = False
    legacy_advice: ClassVar[str] = (
        "\nIf it has not changed, Keras 3 structures the model differently from Keras 2, which "
        "wrote the checkpoint. Load it with TensorFlow 2.15:\n"
        '  pip install "tensorflow==2.15.*"'
    )

    def __init__(self, keras: Any) -> None:
        self.keras = keras
        self.optimizer_types: tuple[type, ...] = (keras.optimizers.Optimizer,)
        self.generator_types: tuple[type, ...] = (keras.random.SeedGenerator,)
        self.container_types: tuple[type, ...] = (
            *self.optimizer_types,
            *self.generator_types,
            keras.layers.Layer,
            keras.metrics.Metric,
            keras.losses.Loss,
            keras.optimizers.schedules.LearningRateSchedule,
        )

    def __str__(self) -> str:
        """Return the version of Keras and the back end, as in messages."""
        return f"Keras {self.keras_major} on {self.name}"

    # -- the process ------------------------------------------------------------------------------

    def keep_mode(self) -> None:
        """Undo settings of the user's code under which a trial cannot train."""
        return

    def prepare_devices(self, local_rank: int) -> None:
        """Choose the device of this worker."""
        return

    @abc.abstractmethod
    def fix_operations(self, deterministic: bool | None) -> None:
        """Make operations deterministic; None: only on a CPU."""

    def log_nondeterminism(self) -> None:
        """Say that the operations of a GPU are not deterministic."""
        logging.getLogger("detcore.keras").info(
            "operations are not deterministic on a GPU, so a resumed run may differ in the last "
            "bits. To fix their order, set reproducibility.deterministic_ops: true"
        )

    @abc.abstractmethod
    def describe_machine(self) -> dict[str, int]:
        """Return numbers that may change the last bits of results."""

    @abc.abstractmethod
    def open_collective(self, distributed: DistributedContext, *, compress: bool) -> Collective:
        """Connect several workers, before the trial is created. Return their collectives.

        Args:
            distributed: The workers.
            compress: Whether gradients are sent as half-precision numbers.
        """

    # -- generators -------------------------------------------------------------------------------

    def seed_generators(self, seed: int) -> None:
        """Seed generators that ``keras.utils.set_random_seed`` leaves out."""
        return

    def prepare_script(self, model: Any) -> int:
        """Make the generators of a script and its model savable; return the script's seed.

        Generators that exist keep their state.
        """
        from keras.src.utils import rng_utils  # Keras has no public name for the seed

        return int(rng_utils.get_random_seed() or 0) % (1 << 31)

    def find_generators(self) -> dict[str, Any]:
        """Return the library's process-wide generators by name, with ``numpy`` and ``assign``."""
        return {}

    def capture_generators(self) -> dict[str, Any]:
        """Return the state of the process-wide generators as JSON values."""
        states = {name: g.numpy().tobytes().hex() for name, g in self.find_generators().items()}
        seed = self.find_keras_generator()
        return {
            self.name: states,
            "keras_global_seed": None if seed is None else self.read_variable(seed).tolist(),
        }

    def restore_generators(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `capture_generators`.

        Raises:
            KeyError, TypeError, ValueError: If the state is not such a result.
        """
        states = state[self.name]
        for name, generator in self.find_generators().items():
            if name in states:
                generator.assign(np.frombuffer(bytes.fromhex(states[name]), np.uint8).copy())
        self.restore_keras_generator(state["keras_global_seed"])

    def find_keras_generator(self) -> Any:
        """Return the state of the generator for layers and operations without a seed, or None."""
        # Keras has no public name for its global generator. Checked on 3.15.
        from keras.src.backend.common import global_state
        from keras.src.random import seed_generator

        generator = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
        return None if generator is None else self.get_raw(generator.state)

    def restore_keras_generator(self, words: list[int] | None) -> None:
        """Restore the generator of `find_keras_generator`."""
        from keras.src.backend.common import global_state
        from keras.src.random import seed_generator

        if words is None:
            # Keras creates its generator on the next use, with a seed from Python's generator.
            global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)
            return
        state = seed_generator.global_seed_generator().state
        state.assign(np.array(words, state.dtype))

    # -- variables and tensors --------------------------------------------------------------------

    def is_variable(self, value: Any) -> bool:
        """Whether a value is a variable of the back end or of Keras 3."""
        return isinstance(value, self.keras.Variable)

    def get_raw(self, variable: Any) -> Any:
        """Return the variable that holds the value."""
        return variable

    def get_key(self, variable: Any) -> int:
        """Return a number that all wrappers of a variable share."""
        return id(variable)

    def get_shape(self, variable: Any) -> list[int | None] | None:
        """Return the shape, with None for unknown sizes; None if all are unknown."""
        return list(variable.shape)

    def get_dtype(self, variable: Any) -> str:
        """Return the name of a variable's type, such as ``"bfloat16"``."""
        return str(variable.dtype)

    def read_variable(self, variable: Any) -> npt.NDArray[Any]:
        """Return a copy of the value of a variable, or of an object like one."""
        if isinstance(variable, self.keras.Variable):
            # Its method `numpy` causes warnings with NumPy 2. Observed in Keras 3.15.
            return np.asarray(self.keras.ops.convert_to_numpy(variable.value))
        return np.asarray(variable.numpy())

    def read_tensor(self, value: Any) -> npt.NDArray[Any] | None:
        """Return a copy of a numeric variable or tensor; None for other values."""
        if self.is_variable(value):
            return self.read_variable(value)
        if self.keras.ops.is_tensor(value):
            return np.asarray(self.keras.ops.convert_to_numpy(value))
        return None

    def make_tensor(self, array: npt.NDArray[Any], dtype: str) -> Any:
        """Return a tensor."""
        return self.keras.ops.convert_to_tensor(array, dtype)

    def make_variable(self, array: npt.NDArray[Any], dtype: str) -> Any:
        """Return a variable that is not trained."""
        return self.keras.Variable(array, dtype=dtype, trainable=False)

    def list_tracked(self, value: Any) -> Iterable[tuple[str, Any]]:
        """Return the parts of an object that the library tracks apart from its attributes."""
        return ()

    # -- models -----------------------------------------------------------------------------------

    def is_compiled(self, model: Any) -> bool:
        """Whether a model was compiled."""
        return bool(model.compiled)

    def check_model(self, model: Any) -> None:
        """Check a compiled model.

        Raises:
            InvalidModelError: If the model cannot be trained.
        """
        return

    def list_seeds(self, model: Any) -> list[Any]:
        """Return the variables of a model that are neither weights nor metrics."""
        weights = {id(variable) for variable in model.weights}
        return [variable for variable in model.variables if id(variable) not in weights]

    def list_generators(self, model: Any) -> list[Any]:
        """Return the variables that hold the random generators of a model's layers."""
        return [v for v in model.variables if v.path.endswith("seed_generator_state")]

    def list_metrics(self, model: Any) -> list[Any]:
        """Return the metrics of a model, with nested metrics in place of their containers."""
        return [
            inner
            for metric in model.metrics
            for inner in getattr(metric, "metrics", None) or [metric]
        ]

    def reset_layer(self, layer: Any) -> None:
        """Reset the state of a stateful layer."""
        layer.reset_state()

    def share_gradients(
        self,
        optimizers: Sequence[Any],
        settings: GradientSettings,
        collective: Collective | None,
    ) -> None:
        """Make optimizers sum gradients over batches and workers before they use them.

        Raises:
            InvalidExperimentError: If the back end or an optimizer cannot sum them.
        """
        if settings.aggregation_frequency > 1:
            raise InvalidExperimentError(
                f"optimizations.aggregation_frequency is {settings.aggregation_frequency}, but "
                f"detcore does not sum gradients on the {self.name!r} back end of Keras.\n"
                "Pass gradient_accumulation_steps to the optimizer, or set "
                "KERAS_BACKEND=tensorflow."
            )
        if collective is not None:
            for optimizer in optimizers:
                average_gradients(optimizer, collective, self.find_update(optimizer))

    def find_update(self, optimizer: Any) -> str:
        """Return the method of an optimizer to which a step passes the gradients."""
        return "apply"

    # -- training ---------------------------------------------------------------------------------

    def compiles_steps(self, model: Any) -> bool:
        """Whether a step reads Python's variables only when it is compiled."""
        return bool(model.jit_compile) and not model.run_eagerly

    @abc.abstractmethod
    def make_train_steps(
        self,
        model: Any,
        data: TrainingData,
        *,
        class_weight: Mapping[int, float] | None,
        collective: Collective | None,
    ) -> TrainSteps:
        """Return the model's training step.

        Args:
            model: The compiled model.
            data: The training data.
            class_weight: Factor of the loss for each class, or None.
            collective: Sums of gradients; None for a single worker.
        """

    @abc.abstractmethod
    def make_test_steps(self, model: Any, element_spec: Any) -> EvaluationSteps:
        """Return the model's test step for batches of a specification."""

    @abc.abstractmethod
    def fit(self, model: Any, train: Callable[[], Mapping[str, float] | None]) -> None:
        """Run a fit of Keras, in which `train` trains some batches, until it returns None.

        The result of `train` are the metrics of its batches.
        """

    @abc.abstractmethod
    def evaluate(self, model: Any, test: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Run an evaluation of Keras, in which `test` tests all batches. Return the metrics."""

    # -- batches ----------------------------------------------------------------------------------

    def as_tensor(self, array: npt.NDArray[Any]) -> Any:
        """Return an array as a step takes it, with floats in Keras's precision.

        Raises:
            InvalidDataTypeError: If the back end has no such type.
        """
        if array.dtype.kind in "OUSMm":
            raise InvalidDataTypeError(
                f"the data has values of type {array.dtype}, which the {self.name!r} back end of "
                "Keras cannot compute with.\n"
                "Convert them to numbers, or set KERAS_BACKEND=tensorflow, which has strings."
            )
        is_float = np.issubdtype(array.dtype, np.floating)
        return array.astype(self.keras.config.floatx(), copy=False) if is_float else array

    def as_batch_part(self, part: Any) -> Any:
        """Return an array or tensor of any library as a step takes it."""
        if self.keras.ops.is_tensor(part):
            return part
        if hasattr(part, "has_value"):
            return None  # `tf.experimental.Optional`, a pipeline's None
        convert = getattr(part, "numpy", None)  # also of TensorFlow and PyTorch
        array = np.asarray(convert() if callable(convert) else part)
        if array.dtype == object and not isinstance(part, np.ndarray | list | tuple):
            raise InvalidDataTypeError(
                f"the data has a {type(part).__name__}, which the {self.name!r} back end of Keras "
                "cannot take.\nPass dense arrays, or set KERAS_BACKEND=tensorflow."
            )
        return self.as_tensor(array)

    def array_spec(self, array: npt.NDArray[Any]) -> Any:
        """Return the specification of batches of records of an array."""
        dtype = self.as_tensor(array[:1]).dtype
        return self.keras.KerasTensor((None, *array.shape[1:]), str(dtype))

    def block_spec(self, specs: Sequence[Any]) -> Any:
        """Return the specification of a block of arrays and its bounds; None if none is needed."""
        return None

    def tensor_spec(self, tensor: Any) -> Any:
        """Return the specification of tensors like this one, with any number of records."""
        dtype = self.keras.backend.standardize_dtype(tensor.dtype)
        return self.keras.KerasTensor((None, *tensor.shape[1:]), dtype)

    def count_records(self, tensors: Sequence[Any]) -> int:
        """Return the number of records in the tensors of a batch."""
        return next((int(tensor.shape[0]) for tensor in tensors if len(tensor.shape)), 1)

    def spec_to_json(self, spec: Any) -> dict[str, Any] | None:
        """Return the specification of one tensor as JSON values; None for other objects."""
        if not hasattr(spec, "shape") or not hasattr(spec, "dtype"):
            return None
        dtype = self.keras.backend.standardize_dtype(spec.dtype)
        return {"kind": "tensor", "shape": list(spec.shape), "dtype": dtype}

    def spec_from_json(self, value: Mapping[str, Any]) -> Any:
        """Return the specification for a result of `spec_to_json`.

        Raises:
            KeyError, TypeError, ValueError: If it is not such a result.
        """
        if value["kind"] != "tensor":
            raise ValueError(f"the {self.name} back end of Keras has no {value['kind']!r} tensors")
        return self.keras.KerasTensor(tuple(value["shape"]), value["dtype"])

    def call_symbolically(self, model: Any, inputs: Any) -> None:
        """Create a model's weights by a call that computes nothing.

        Args:
            model: The model.
            inputs: Nested specification of a batch of its inputs.
        """
        model(inputs, training=False)


def average_gradients(optimizer: Any, collective: Collective, method: str) -> None:
    """Make a method of an optimizer use the mean of the workers' gradients.

    Args:
        optimizer: The optimizer, of Keras 3.
        collective: Sums over the workers.
        method: "apply" or "stateless_apply".
    """
    kind = type(optimizer)
    inner = getattr(kind, method)
    position = list(inspect.signature(inner).parameters).index("grads")

    def update(*arguments: Any, **named: Any) -> Any:
        gradients = named.pop("grads") if "grads" in named else arguments[position]
        present = [gradient for gradient in gradients if gradient is not None]
        sums = iter(collective.sum_gradients(present))
        means = [None if g is None else next(sums) / collective.size for g in gradients]
        return inner(*arguments[:position], means, *arguments[position + 1 :], **named)

    # Bypasses Keras's own `__setattr__`, which looks for variables.
    object.__setattr__(optimizer, "__class__", make_subclass(kind, **{method: update}))


def make_subclass(kind: type, **names: Any) -> type:
    """Return a subclass with the name of its base class, under which a saved model is loaded."""
    names.update(__module__=kind.__module__, __qualname__=kind.__qualname__, __doc__=kind.__doc__)
    return types.new_class(kind.__name__, (kind,), exec_body=lambda body: body.update(names))


def test_batches(
    run_step: Callable[[Any], Mapping[str, Any]],
    count_records: Callable[[Any], int],
    batches: Iterable[Any],
    *,
    limit: int,
    callbacks: Sequence[Any],
) -> EvaluationOutputs:
    """Test batches one at a time, with the callbacks' batch-level test hooks."""
    outputs: Mapping[str, Any] = {}
    count = records = 0
    for batch in batches:
        for callback in callbacks:
            callback.on_test_batch_begin(count, {})
        outputs = run_step(batch)
        records += count_records(batch)
        for callback in callbacks:
            callback.on_test_batch_end(
                count, {name: np.asarray(value) for name, value in outputs.items()}
            )
        count += 1
        if count >= limit:
            break
    return EvaluationOutputs(outputs, count, records)


def keras_function(model: Any, kind: str) -> Callable[..., Any]:
    """Return the function of a batch or an iterator that the model's class creates for Keras.

    Args:
        model: The compiled model.
        kind: "train" or "test".
    """
    attribute = f"{kind}_function"
    before = getattr(model, attribute)
    returned = getattr(type(model), f"make_{kind}_function")(model)
    function: Callable[..., Any] = returned if returned is not None else getattr(model, attribute)
    setattr(model, attribute, before)  # Keras also sets the attribute
    return function
