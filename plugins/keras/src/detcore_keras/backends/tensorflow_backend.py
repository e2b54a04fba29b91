"""Keras 3 on TensorFlow."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detcore.errors import InvalidExperimentError, InvalidModelError, PluginError
from detcore_keras.backends import graph_batches
from detcore_keras.backends.backend import SUMS_OF_GRADIENTS, Backend, TrainingData
from detcore_keras.backends.endless_fit import fit_until_stopped, replaced_function, stand_in
from detcore_keras.backends.graph_steps import GraphTestSteps, GraphTrainSteps

if TYPE_CHECKING:
    from detcore.core import DistributedContext
    from detcore.types import GradientSettings
    from detcore_keras.backends.backend import Collective

_logger = logging.getLogger("detcore.keras")

_OLDEST = (2, 15)
# Graph operations that contain the state of their random generator.
_STATEFUL_OPERATIONS = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)


class TensorFlowBackend(Backend):
    """Keras 3 on TensorFlow: many steps run in one graph execution.

    Raises:
        PluginError: If the version of TensorFlow is not supported.
    """

    name = "tensorflow"
    end_errors: tuple[type[Exception], ...] = (StopIteration, tf.errors.OutOfRangeError)
    advice: ClassVar[str] = ""

    def __init__(self) -> None:
        if tuple(int(part) for part in tf.__version__.split(".")[:2]) < _OLDEST:
            raise PluginError(
                "detcore-keras needs TensorFlow 2.15 or newer; this environment has "
                f"{tf.__version__}.\n"
                '  pip install "tensorflow>=2.15"'
            )
        # The meaning of `tf.keras` depends on TensorFlow's version and on TF_USE_LEGACY_KERAS. The
        # user's code uses the same `tf.keras`.
        self._set_keras(tf.keras)
        self.generator_types = (tf.random.Generator, *self.generator_types)
        self.container_types = (
            *self.container_types,
            tf.Module,
            tf.random.Generator,
            tf.__internal__.tracking.Trackable,
        )

    def _set_keras(self, keras: Any) -> None:
        Backend.__init__(self, keras)

    # -- the process ------------------------------------------------------------------------------

    def keep_mode(self) -> None:
        """Turn TensorFlow 2's behaviour on again if the user's code has turned it off.

        Raises:
            InvalidExperimentError: If the code has created operations with it turned off.
        """
        if tf.compat.v1.executing_eagerly_outside_functions():
            return
        operations = tf.compat.v1.get_default_graph().get_operations()
        if operations:
            raise InvalidExperimentError(
                "the code turned TensorFlow 2's behaviour off and then created a graph "
                f"({len(operations)} operations, the first is {operations[0].name!r}), but a "
                "KerasTrial needs TensorFlow 2's behaviour.\n"
                "Create models and data only in the trial's methods, and remove "
                "tf.compat.v1.disable_v2_behavior() or disable_eager_execution(). Only an "
                "EstimatorTrial is trained without TensorFlow 2's behaviour."
            )
        # TensorFlow allows turning it on only without a default graph, which is empty here.
        tf.compat.v1.reset_default_graph()
        tf.compat.v1.enable_v2_behavior()
        # If it was off before TensorFlow first ran, functions continue to create their variables in
        # a graph. TensorFlow has no public name for this state. Checked on 2.15 and 2.21.
        switches = _eager_context().context_switches
        if not switches.stack:
            from tensorflow.python.eager import context

            switches.push(False, context.eager_mode, None)
        _logger.warning(
            "the code turns TensorFlow 2's behaviour off (tf.compat.v1.disable_v2_behavior or "
            "disable_eager_execution). A KerasTrial needs it, so detcore turned it on again. "
            "Remove the call"
        )

    def prepare_devices(self, local_rank: int) -> None:
        """Choose the GPU of this worker."""
        gpus = tf.config.list_physical_devices("GPU")
        if gpus:
            gpu = gpus[local_rank % len(gpus)]
            tf.config.set_visible_devices(gpu, "GPU")
            tf.config.experimental.set_memory_growth(gpu, True)

    def fix_operations(self, deterministic: bool | None) -> None:
        """Make operations deterministic; None: only on a CPU."""
        has_gpu = bool(tf.config.list_physical_devices("GPU"))
        if deterministic or (deterministic is None and not has_gpu):
            tf.config.experimental.enable_op_determinism()
        elif has_gpu:
            self.log_nondeterminism()

    def describe_machine(self) -> dict[str, int]:
        """Return numbers that may change the last bits of results."""
        return {
            "threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "gpu": len(tf.config.list_physical_devices("GPU")),
        }

    def open_collective(self, distributed: DistributedContext, *, compress: bool) -> Collective:
        """Return detcore's collectives: Keras 3's TensorFlow has no Horovod."""
        from detcore_keras.distributed.tensorflow_collective import TensorFlowCollective

        return TensorFlowCollective(distributed, compress=compress)

    # -- generators -------------------------------------------------------------------------------

    def seed_generators(self, seed: int) -> None:
        """Create the global generator. TensorFlow would choose a random seed for it."""
        tf.random.set_global_generator(tf.random.Generator.from_seed(seed))

    def prepare_script(self, model: Any) -> int:
        """Make the generators savable. Without ``tf.random.set_seed``, the seed becomes 0."""
        seed = _eager_context()._seed
        if seed is None:
            seed = 0
            tf.random.set_seed(seed)
        if _find_global_generator() is None:
            self.seed_generators(seed)
        return int(seed) % (1 << 31)

    def find_generators(self) -> dict[str, Any]:
        """Return the state of TensorFlow's global generator, if it exists."""
        generator = _find_global_generator()
        return {} if generator is None else {"tensorflow": generator.state}

    def capture_generators(self) -> dict[str, Any]:
        """Return the states of TensorFlow's global generator and eager seeds, and Keras's seed.

        The state inside operations such as ``tf.random.normal`` in a graph is left out, because
        TensorFlow cannot read it.
        """
        eager, generator = _eager_context(), _find_global_generator()
        keras_seed = self.find_keras_generator()
        return {
            # Without a seed, eager operations have random ones.
            "tensorflow": {
                "seed": eager._seed,
                "drawn": None if eager._seed is None else eager._rng.getstate(),
            },
            "tensorflow_global_generator": None
            if generator is None
            else {"algorithm": int(generator.algorithm), "state": generator.state.numpy().tolist()},
            "keras_global_seed": None if keras_seed is None else keras_seed.numpy().tolist(),
        }

    def restore_generators(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `capture_generators`."""
        if state["tensorflow"]["seed"] is not None:
            tf.random.set_seed(state["tensorflow"]["seed"])
            version, words, gauss = state["tensorflow"]["drawn"]
            _eager_context()._rng.setstate((version, tuple(words), gauss))
        _restore_global_generator(state["tensorflow_global_generator"])
        self.restore_keras_generator(state["keras_global_seed"])

    def warn_of_unsaved_generators(self, graph: Any) -> None:
        """Warn about random operations in a training step's graph whose state cannot be saved."""
        names = set()
        definition = graph.as_graph_def()
        bodies = [function.node_def for function in definition.library.function]
        for node in (node for body in [definition.node, *bodies] for node in body):
            # The first graph of Keras 2 also initializes the variables.
            if node.op in _STATEFUL_OPERATIONS and "/Initializer/" not in node.name:
                names.add(node.op)
        if names:
            _logger.warning(
                "the training step draws random numbers with TensorFlow operations whose state "
                "cannot be saved (%s). A resumed run draws other numbers. Use keras.random with a "
                "keras.random.SeedGenerator (Keras 3), tf.random.Generator or "
                "tf.random.stateless_*.%s",
                ", ".join(sorted(names)),
                self.advice,
            )

    # -- variables and tensors --------------------------------------------------------------------

    def is_variable(self, value: Any) -> bool:
        """Whether a value is a variable of TensorFlow or of Keras 3."""
        return isinstance(value, tf.Variable) or super().is_variable(value)

    def get_raw(self, variable: Any) -> Any:
        """Return the TensorFlow variable of a Keras 3 variable, and other variables unchanged."""
        return variable.value if isinstance(variable, self.keras.Variable) else variable

    def get_key(self, variable: Any) -> int:
        """Return the id of the handle, which wrappers for mixed precision share."""
        return id(variable.handle)

    def get_shape(self, variable: Any) -> list[int | None] | None:
        """Return the shape, with None for unknown sizes; None if all are unknown."""
        shape = variable.shape
        return None if shape.rank is None else shape.as_list()

    def get_dtype(self, variable: Any) -> str:
        """Return TensorFlow's name of the type, such as ``"string"``."""
        return str(tf.as_dtype(variable.dtype).name)

    def read_tensor(self, value: Any) -> npt.NDArray[Any] | None:
        """Return the content of a variable or an eager numeric tensor, or None."""
        raw = self.get_raw(value)
        if not isinstance(raw, tf.Variable) and not (tf.is_tensor(raw) and hasattr(raw, "numpy")):
            return None
        array = np.asarray(raw.numpy())
        return None if array.dtype.kind in "OSUM" else array

    def make_tensor(self, array: npt.NDArray[Any], dtype: str) -> Any:
        """Return a tensor."""
        return tf.constant(array, tf.as_dtype(dtype))

    def make_variable(self, array: npt.NDArray[Any], dtype: str) -> Any:
        """Return a variable."""
        return tf.Variable(self.make_tensor(array, dtype))

    def list_tracked(self, value: Any) -> Iterable[tuple[str, Any]]:
        """Return the children of a trackable object."""
        if isinstance(value, tf.__internal__.tracking.Trackable):
            return sorted(tf.train.TrackableView.children(value).items())
        return ()

    # -- models -----------------------------------------------------------------------------------

    def check_model(self, model: Any) -> None:
        """Check that no distribution strategy splits the model."""
        if (
            model.distribute_strategy is not tf.distribute.get_strategy()
            or tf.distribute.has_strategy()
        ):
            raise InvalidModelError(
                f"the model {model.name!r} was built under a distribution strategy "
                f"({type(model.distribute_strategy).__name__}).\n"
                "detcore runs one worker process for each device.\n"
                "Build the model without a strategy, and set resources.slots_per_trial."
            )

    def share_gradients(
        self,
        optimizers: Sequence[Any],
        settings: GradientSettings,
        collective: Collective | None,
    ) -> None:
        """Make optimizers sum gradients over batches and workers before they use them."""
        from detcore_keras.distributed.gradients import share_gradients, with_apply

        for optimizer in optimizers if settings.aggregation_frequency > 1 else ():
            inner = getattr(optimizer, "inner_optimizer", optimizer)
            if inner.gradient_accumulation_steps:
                raise InvalidExperimentError(
                    f"optimizations.aggregation_frequency is {settings.aggregation_frequency}, and "
                    f"the optimizer {inner.name!r} has gradient_accumulation_steps="
                    f"{inner.gradient_accumulation_steps}.\n"
                    "Gradients would be accumulated twice.\nSet only one of the two."
                )
        share_gradients(optimizers, settings, collective, with_apply)

    # -- training ---------------------------------------------------------------------------------

    def compiles_steps(self, model: Any) -> bool:
        """Whether a step reads Python's variables only when it is traced."""
        return not model.run_eagerly

    def make_train_steps(
        self,
        model: Any,
        data: TrainingData,
        *,
        class_weight: Mapping[int, float] | None,
        collective: Collective | None,
    ) -> GraphTrainSteps:
        """Return the training step as a graph, unless the model runs eagerly."""
        # XLA cannot compile the exchange of gradients.
        may_compile = collective is None
        return GraphTrainSteps(
            self, model, data, class_weight=class_weight, may_compile=may_compile
        )

    def make_test_steps(self, model: Any, element_spec: Any) -> GraphTestSteps:
        """Return the test step as a graph, unless the model runs eagerly."""
        return GraphTestSteps(self, model, element_spec)

    def fit(self, model: Any, train: Callable[[], Mapping[str, float] | None]) -> None:
        """Run ``model.fit`` with `train` in place of its train function."""
        fit_until_stopped(model, train, self.find_counter(model, "train"))

    def evaluate(self, model: Any, test: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Run ``model.evaluate`` with `test` in place of its test function."""
        with replaced_function(model, "test", test):
            metrics: Mapping[str, Any] = model.evaluate(
                stand_in(), steps=1, verbose=0, return_dict=True
            )
        return metrics

    def find_counter(self, model: Any, kind: str) -> Any:
        """Return the variable of Keras 2 that counts the steps of a model; None on Keras 3."""
        return None

    def trained_as_compiled(self, model: Any) -> contextlib.AbstractContextManager[None]:
        """Do nothing: Keras 3 trains the variables that are trainable now."""
        return contextlib.nullcontext()

    def finish_step(self, model: Any, kind: str, outputs: Any) -> None:
        """Do nothing after a step."""
        return

    def convert_step(self, run_step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Use the step as written, as Keras 3 does."""
        converted: Callable[[Any], Any] = tf.autograph.experimental.do_not_convert(run_step)
        return converted

    def build_ahead(self, model: Any, element_spec: Any) -> None:
        """Create the variables of the optimizer and the metrics, as the first step would.

        TensorFlow traces a step twice if its first trace creates variables. This method creates the
        same variables, with the same names, if the whole step is Keras's own, that is for a
        functional or sequential model with one output. For other models, the trace creates them.

        Args:
            model: The compiled model.
            element_spec: Nested ``tf.TypeSpec`` of one batch.
        """
        output = self._find_only_output(model)
        has_target = isinstance(element_spec, tuple) and len(element_spec) > 1
        target = element_spec[1] if has_target else None
        if output is None or not isinstance(target, tf.TensorSpec) or target.shape.rank is None:
            return
        optimizer = model.optimizer
        is_plain = isinstance(optimizer, self.keras.optimizers.Optimizer) and self.is_own(optimizer)
        # The trace always creates the sums of gradients.
        sums = getattr(type(optimizer), SUMS_OF_GRADIENTS, None)
        if is_plain and (sums is None or sums.frequency == 1):
            self.build_optimizer(model)
        self.build_metrics(model, target, output)

    def _find_only_output(self, model: Any) -> Any:
        """Return the symbolic output of a model whose step is Keras's own, or None."""
        output = self.find_outputs(model)
        steps = {"train_step", "compute_loss", "compute_metrics"}
        is_own = self.is_own(model) and not steps & vars(model).keys()
        return None if not is_own or tf.nest.is_nested(output) else output

    def is_own(self, value: Any) -> bool:
        """Whether the class of a value is Keras's."""
        keras_package, value_package = (
            kind.__module__.partition(".")[0] for kind in (self.keras.Model, type(value))
        )
        return bool(keras_package == value_package)

    def find_outputs(self, model: Any) -> Any:
        """Return the symbolic outputs of a functional or sequential model, or None."""
        # A sequential model contains a functional model. Keras has no public name for the
        # structure of its outputs. Checked on 3.15.
        functional = getattr(model, "_functional", None) or model
        return getattr(functional, "_outputs_struct", None)

    def build_optimizer(self, model: Any) -> None:
        """Create the variables of a model's optimizer, unless they exist."""
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)

    def build_metrics(self, model: Any, target: Any, output: Any) -> None:
        """Create the variables of a model's metrics, unless they exist.

        Args:
            model: The model.
            target: The ``tf.TensorSpec`` of its targets.
            output: Its symbolic output.
        """
        metrics = model._compile_metrics
        if metrics is not None and not metrics.built:
            tensor = self.keras.KerasTensor(target.shape.as_list(), target.dtype.name)
            metrics.build(tensor, output)

    # -- batches ----------------------------------------------------------------------------------

    def as_tensor(self, array: npt.NDArray[Any]) -> Any:
        """Return an array as a tensor, with floats in Keras's precision."""
        return tf.convert_to_tensor(array, dtype=self._find_type(array))

    def as_batch_part(self, part: Any) -> Any:
        """Return a tensor of TensorFlow."""
        return part if graph_batches.is_tensor(part) else self.as_tensor(np.asarray(part))

    def array_spec(self, array: npt.NDArray[Any]) -> Any:
        """Return the specification of batches of records of an array."""
        return tf.TensorSpec((None, *array.shape[1:]), self._find_type(array))

    def block_spec(self, specs: Sequence[Any]) -> Any:
        """Return the specification of a block of arrays and its bounds."""
        return tuple(specs), tf.TensorSpec((None,), tf.int32)

    def tensor_spec(self, tensor: Any) -> Any:
        """Return the specification of tensors like this one, with any number of records."""
        return graph_batches.make_tensor_spec(tensor)

    def count_records(self, tensors: Sequence[Any]) -> int:
        """Return the number of records in the tensors of a batch."""
        return int(graph_batches.batch_records(tensors))

    def spec_to_json(self, spec: Any) -> dict[str, Any] | None:
        """Return a ``tf.TypeSpec`` as JSON values. Unsupported kinds become None."""
        return graph_batches.spec_to_json(spec)

    def spec_from_json(self, value: Mapping[str, Any]) -> Any:
        """Return the ``tf.TypeSpec`` for a result of `spec_to_json`."""
        return graph_batches.spec_from_json(value)

    def call_symbolically(self, model: Any, inputs: Any) -> None:
        """Create a model's weights by tracing a call."""

        def call_model(x: Any) -> Any:
            return model(x, training=False)

        tf.function(call_model, autograph=False).get_concrete_function(inputs)

    def _find_type(self, array: npt.NDArray[Any]) -> Any:
        return graph_batches.tensor_type(array, self.keras.backend.floatx())


def _eager_context() -> Any:
    # TensorFlow has no public way to read the seed given to `tf.random.set_seed`, or the number of
    # seeds that eager operations drew from it. Checked on 2.15 and 2.21.
    from tensorflow.python.eager import context

    return context.context()


def _find_global_generator() -> Any:
    from tensorflow.python.ops import stateful_random_ops

    # The public `tf.random.get_global_generator` would create a generator with a random seed.
    return stateful_random_ops.global_generator


def _restore_global_generator(state: dict[str, Any] | None) -> None:
    if state is None:
        return
    words = np.array(state["state"], np.int64)
    generator = _find_global_generator()
    if generator is not None and int(generator.algorithm) == state["algorithm"]:
        # Keep the variable, because traced graphs read it.
        generator.state.assign(words)
    else:
        tf.random.set_global_generator(
            tf.random.Generator.from_state(words, alg=state["algorithm"])
        )
