"""Keras 3 on JAX."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from detcore.errors import InvalidModelError
from detcore_keras.backends.backend import TrainingData, keras_function
from detcore_keras.backends.batch_steps import BatchBackend, RunStep
from detcore_keras.backends.loop_steps import LoopTrainSteps
from detcore_keras.distributed.jax_collective import JaxCollective

if TYPE_CHECKING:
    from detcore.core import DistributedContext
    from detcore_keras.backends.backend import Collective

_DETERMINISTIC_FLAG = "--xla_gpu_deterministic_ops=true"
# The parts of the state that a training step and a test step receive and return.
_TRAIN_PARTS = (
    "trainable_variables",
    "non_trainable_variables",
    "optimizer_variables",
    "metrics_variables",
)
_TEST_PARTS = ("trainable_variables", "non_trainable_variables", "metrics_variables")


class JaxBackend(BatchBackend):
    """Keras 3 on JAX: a step is a pure function of the state and a batch.

    As inside Keras's ``fit``, the state is between two steps outside the variables. Callbacks that
    read ``self.model`` move it into the variables, and so does the end of each unit of training.
    """

    name = "jax"
    step_arguments = ("state", "data")
    compiles_variables = True
    _is_deterministic: bool | None = False

    def open_collective(self, distributed: DistributedContext, *, compress: bool) -> Collective:
        """Return the collectives of JAX."""
        return JaxCollective(distributed, compress=compress)

    def fix_operations(self, deterministic: bool | None) -> None:
        """Make operations deterministic on a GPU; on a CPU, they are."""
        self._is_deterministic = deterministic
        if deterministic:
            flags = os.environ.get("XLA_FLAGS", "")
            os.environ["XLA_FLAGS"] = f"{flags} {_DETERMINISTIC_FLAG}".strip()

    def describe_machine(self) -> dict[str, int]:
        """Return numbers that may change the last bits of results."""
        count = jax.device_count() if jax.default_backend() == "gpu" else 0
        return {"threads": os.cpu_count() or 0, "gpu": count}

    def find_update(self, optimizer: Any) -> str:
        """Return the method of an optimizer to which a step passes the gradients."""
        # This optimizer does not call its own `apply`.
        is_scaled = isinstance(optimizer, self.keras.mixed_precision.LossScaleOptimizer)
        return "stateless_apply" if is_scaled else "apply"

    def make_step(
        self, model: Any, kind: Literal["train", "test"], collective: Collective | None = None
    ) -> RunStep:
        """Return a step that changes the state of the model outside the variables.

        Raises:
            InvalidModelError: If a model for several workers runs eagerly.
        """
        if kind == "train" and self._is_deterministic is None and jax.default_backend() != "cpu":
            self.log_nondeterminism()
        if not isinstance(collective, JaxCollective):
            function = keras_function(model, kind)
            return _keep_state(model, kind, lambda state, batch: function(state, iter([batch])))
        if model.run_eagerly or not model.jit_compile:
            raise InvalidModelError(
                f"the model {model.name!r} is not compiled (run_eagerly or jit_compile=False), but "
                f"its {collective.size} workers sum gradients inside a compiled step of JAX.\n"
                "Remove the argument from compile, or set resources.slots_per_trial: 1."
            )
        return _keep_state(model, kind, collective.compile_step(model.train_step))

    def make_train_steps(
        self,
        model: Any,
        data: TrainingData,
        *,
        class_weight: Mapping[int, float] | None,
        collective: Collective | None,
    ) -> LoopTrainSteps:
        """Return the training step, in a loop over batches if it allows that."""
        return LoopTrainSteps(
            self,
            model,
            data,
            class_weight,
            collective,
            make_state_step=functools.partial(_keep_state, model, "train"),
            read_state=functools.partial(_read_state, model, _TRAIN_PARTS),
        )

    def settle(self, model: Any) -> None:
        """Move the state into the model's variables."""
        model.jax_state_sync()

    def fit(self, model: Any, train: Callable[[], Mapping[str, float] | None]) -> None:
        """Call `train` until it returns None."""
        model.stop_training = False
        model.reset_metrics()
        try:
            while train() is not None:
                pass
        finally:
            model.jax_state_sync()
            model._jax_state = None

    def evaluate(self, model: Any, test: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Call `test` with fresh metrics, and return the metrics."""
        model.jax_state_sync()
        model.reset_metrics()
        outputs = test()
        model.jax_state_sync()
        metrics: Mapping[str, Any] = model._get_metrics_result_or_logs(outputs)
        return {name: np.asarray(value) for name, value in metrics.items()}


def _read_state(model: Any, parts: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the parts of a model's state."""
    if model._jax_state_synced or not model._jax_state:
        # A callback may have changed the variables.
        state: tuple[Any, ...] = model._get_jax_state(**dict.fromkeys(parts, True))
        return state
    return tuple(model._jax_state[part] for part in parts)


def _keep_state(model: Any, kind: str, function: Callable[[Any, Any], Any]) -> RunStep:
    """Return a step that runs a function on the state of the model, and returns its results.

    Raises:
        InvalidModelError: If the function does not return its results and the state.
    """
    parts = _TRAIN_PARTS if kind == "train" else _TEST_PARTS

    def run_step(batch: Any) -> Any:
        result = function(_read_state(model, parts), batch)
        if not (isinstance(result, tuple) and len(result) == 2 and len(result[1]) == len(parts)):
            raise InvalidModelError(
                f"{type(model).__name__}.{kind}_step returned {type(result).__name__}, not a pair "
                "of its results and the state.\n"
                f"On JAX, return (logs, state), where state has {len(parts)} lists: "
                f"{', '.join(parts)}."
            )
        outputs, new_state = result
        # Bypasses Keras's tracking, which would copy the lists at each step.
        state_by_part = dict(zip(parts, new_state, strict=True))
        vars(model).update(_jax_state=state_by_part, _jax_state_synced=False)
        return outputs

    return run_step
