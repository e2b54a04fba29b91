"""Keras 2, which runs on TensorFlow only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detcore_keras.backends.tensorflow_backend import TensorFlowBackend

if TYPE_CHECKING:
    from detcore.core import DistributedContext
    from detcore.types import GradientSettings
    from detcore_keras.backends.backend import Collective


class Keras2Backend(TensorFlowBackend):
    """Keras 2: variables are TensorFlow's, and layers keep their generators outside the weights."""

    keras_major = 2
    not_state = frozenset({"_steps_per_execution"})
    legacy_advice = ""
    advice = (
        " For Dropout and similar layers, call "
        "keras.backend.experimental.enable_tf_random_generator() before you build the model."
    )

    def _set_keras(self, keras: Any) -> None:
        self.keras = keras
        self.optimizer_types = (
            keras.optimizers.Optimizer,
            keras.optimizers.legacy.Optimizer,
            keras.mixed_precision.LossScaleOptimizer,
        )
        self.generator_types = ()
        self.container_types = (
            *self.optimizer_types,
            keras.layers.Layer,
            keras.metrics.Metric,
            keras.losses.Loss,
            keras.optimizers.schedules.LearningRateSchedule,
        )

    def prepare_devices(self, local_rank: int) -> None:
        """Choose the GPU of this worker, and generators that a checkpoint can contain.

        Dropout and similar layers then keep their random state in variables. The older random
        operations keep it in their kernels, which cannot be read.
        """
        super().prepare_devices(local_rank)
        self.keras.backend.experimental.enable_tf_random_generator()

    def open_collective(self, distributed: DistributedContext, *, compress: bool) -> Collective:
        """Return Horovod's collectives."""
        from detcore_keras.distributed.horovod_collective import HorovodCollective

        return HorovodCollective(distributed, compress=compress)

    def prepare_script(self, model: Any) -> int:
        """Make the generators savable, also of layers that were created before."""
        seed = super().prepare_script(model)
        for layer in model._flatten_layers():
            generator: Any = getattr(layer, "_random_generator", None)
            if getattr(generator, "_rng_type", None) == "legacy_stateful":
                # See `prepare_devices`, which runs before the layers of a trial are created.
                generator._rng_type, generator._built = "stateful", False
                generator._maybe_init()
        return seed

    def find_keras_generator(self) -> Any:
        """Return None: Keras 2 has no such generator."""
        return None

    def restore_keras_generator(self, words: list[int] | None) -> None:
        """Check that there is nothing to restore."""
        if words is not None:
            raise ValueError("it holds the global seed of Keras 3, but this is Keras 2")

    def is_variable(self, value: Any) -> bool:
        """Whether a value is a variable of TensorFlow."""
        return isinstance(value, tf.Variable)

    def get_raw(self, variable: Any) -> Any:
        """Return the variable."""
        return variable

    def read_variable(self, variable: Any) -> npt.NDArray[Any]:
        """Return a copy of the value of a variable."""
        return np.asarray(variable.numpy())

    def is_compiled(self, model: Any) -> bool:
        """Whether a model was compiled."""
        return bool(model._is_compiled)

    def list_seeds(self, model: Any) -> list[Any]:
        """Return the variables that hold the random generators of a model's layers."""
        generators = (
            getattr(getattr(layer, "_random_generator", None), "_generator", None)
            for layer in model._flatten_layers()
        )
        return [generator.state for generator in generators if generator is not None]

    def list_generators(self, model: Any) -> list[Any]:
        """Return the variables that hold the random generators of a model's layers."""
        return self.list_seeds(model)

    def list_metrics(self, model: Any) -> list[Any]:
        """Return the metrics of a model, which are never nested."""
        return list(model.metrics)

    def reset_layer(self, layer: Any) -> None:
        """Reset the state of a stateful layer."""
        layer.reset_states()

    def share_gradients(
        self,
        optimizers: Sequence[Any],
        settings: GradientSettings,
        collective: Collective | None,
    ) -> None:
        """Make optimizers sum gradients over batches and workers before they use them."""
        from detcore_keras.distributed.gradients import share_gradients, with_apply_gradients

        share_gradients(optimizers, settings, collective, with_apply_gradients)

    def find_counter(self, model: Any, kind: str) -> Any:
        """Return the variable that counts the steps of a model."""
        return getattr(model, f"_{kind}_counter", None)

    @contextlib.contextmanager
    def trained_as_compiled(self, model: Any) -> Iterator[None]:
        """Train the variables that were trainable in ``compile``, as Keras 2 does inside fit."""
        compiled = getattr(model, "_compiled_trainable_state", None)
        if not compiled:
            yield
            return
        current = model._get_trainable_state()
        model._set_trainable_state(compiled)
        try:
            yield
        finally:
            model._set_trainable_state(current)

    def finish_step(self, model: Any, kind: str, outputs: Any) -> None:
        """Count the step after its outputs."""
        counter = self.find_counter(model, kind)
        if counter is not None:
            with tf.control_dependencies(tf.nest.flatten(outputs)):
                counter.assign_add(1)

    def convert_step(self, run_step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the step for AutoGraph, with which Keras 2 converts it."""
        return run_step

    def find_outputs(self, model: Any) -> Any:
        """Return the symbolic outputs of a functional or sequential model, or None."""
        # A layer may create weights in the first step, but optimizers keep the first list.
        # Keras has no public name for the structure of the outputs. Checked on 2.15.
        is_plain = all(map(self.is_own, model._flatten_layers()))
        return getattr(model, "_nested_outputs", None) if is_plain else None

    def build_optimizer(self, model: Any) -> None:
        """Create the variables of a model's optimizer, unless they exist."""
        optimizer = model.optimizer
        if not (hasattr(optimizer, "_built") or hasattr(optimizer, "inner_optimizer")):
            with tf.name_scope(optimizer.name):
                optimizer.build(model.trainable_variables)

    def build_metrics(self, model: Any, target: Any, output: Any) -> None:
        """Create the variables of a model's metrics, unless they exist."""
        metrics = model.compiled_metrics
        if metrics is not None and not metrics.built:
            metrics.build(output, target)
