"""Find and check the model to train, and its optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detcore.errors import InvalidModelError, describe
from detcore_keras._keras import KERAS_MAJOR, keras, tf

if TYPE_CHECKING:
    from detcore_keras._context import TFKerasTrialContext

__all__ = ["checked_model", "model_generators", "optimizers_of"]


def checked_model(returned: Any, context: TFKerasTrialContext) -> Any:
    """Return the model to train.

    Args:
        returned: Result of ``build_model``.
        context: Has the list of wrapped models.

    Raises:
        InvalidModelError: If it is not a Keras model, was not wrapped or not compiled, or belongs
            to a distribution strategy.
    """
    if returned is not None and not isinstance(returned, keras.Model):
        raise InvalidModelError(
            f"build_model returned {describe(returned)}, which is not a Keras model.\n"
            "Return the model that context.wrap_model returned, after compiling it."
        )
    wrapped = context.wrapped_models
    if not wrapped or (returned is not None and not any(returned is m for m in wrapped)):
        raise InvalidModelError(
            "build_model did not wrap the model that it returned.\n"
            "detcore trains the model that context.wrap_model was given.\n"
            "Add this before model.compile(...): model = self.context.wrap_model(model)"
        )
    model = wrapped[-1] if returned is None else returned
    compiled = model.compiled if KERAS_MAJOR == 3 else model._is_compiled
    if not compiled:
        raise InvalidModelError(
            f"build_model did not compile {model.name!r} ({type(model).__name__}).\n"
            "The optimizer, the loss and the metrics come from compile.\n"
            "Call model.compile(...) after context.wrap_model(model). A class that overrides "
            "compile must call super().compile()."
        )
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
    return model


def optimizers_of(model: Any, context: TFKerasTrialContext) -> list[Any]:
    """Return every optimizer whose state belongs to the training state.

    The one given to ``compile``, those given to ``wrap_optimizer``, and those that are attributes
    of the model, in this order.
    """
    kinds = _optimizer_kinds()
    attributes = [value for _, value in sorted(vars(model).items()) if isinstance(value, kinds)]
    found: list[Any] = []
    for optimizer in [getattr(model, "optimizer", None), *context.wrapped_optimizers, *attributes]:
        if isinstance(optimizer, kinds) and not any(optimizer is known for known in found):
            found.append(optimizer)
    return found


def model_generators(model: Any) -> list[Any]:
    """Return the variables that hold the random generators of a model's layers."""
    if KERAS_MAJOR == 3:
        return [v for v in model.variables if v.path.endswith("seed_generator_state")]
    found = []
    for layer in model._flatten_layers():
        generator = getattr(getattr(layer, "_random_generator", None), "_generator", None)
        if generator is not None:
            found.append(generator.state)
    return found


def _optimizer_kinds() -> tuple[type, ...]:
    kinds: list[type] = [keras.optimizers.Optimizer]
    legacy = getattr(keras.optimizers, "legacy", None)
    if legacy is not None and hasattr(legacy, "Optimizer"):
        kinds.append(legacy.Optimizer)
    mixed = getattr(getattr(keras, "mixed_precision", None), "LossScaleOptimizer", None)
    if mixed is not None:
        kinds.append(mixed)
    return tuple(kinds)
