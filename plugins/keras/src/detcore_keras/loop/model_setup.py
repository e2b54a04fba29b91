"""Find and check the model to train, and its optimizers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from detcore.errors import InvalidCheckpointError, InvalidModelError, describe
from detcore_keras.frameworks import backend, keras


def check_model(returned: Any, wrapped: Sequence[Any]) -> Any:
    """Return the model to train.

    Args:
        returned: Result of ``build_model``.
        wrapped: The arguments of ``wrap_model``.

    Raises:
        InvalidModelError: If the result is not a Keras model, was not wrapped or not compiled,
            replaces the functions that Keras calls for each batch, or belongs to a distribution
            strategy.
    """
    if returned is not None and not isinstance(returned, keras.Model):
        raise InvalidModelError(
            f"build_model returned {describe(returned)}, which is not a Keras model.\n"
            "Return the model that context.wrap_model returned, after compiling it."
        )
    if not wrapped or (returned is not None and not any(returned is m for m in wrapped)):
        raise InvalidModelError(
            "build_model did not wrap the model that it returned.\n"
            "detcore trains the model passed to context.wrap_model.\n"
            "Add this before model.compile(...): model = self.context.wrap_model(model)"
        )
    model = wrapped[-1] if returned is None else returned
    if not backend.is_compiled(model):
        raise InvalidModelError(
            f"build_model did not compile {model.name!r} ({type(model).__name__}).\n"
            "The optimizer, the loss and the metrics come from compile.\n"
            "Call model.compile(...) after context.wrap_model(model). A class that overrides "
            "compile must call super().compile()."
        )
    for kind in ("train", "test"):
        name = f"make_{kind}_function"
        if getattr(type(model), name) is not getattr(keras.Model, name) or name in vars(model):
            raise InvalidModelError(
                f"{type(model).__name__} replaces {name}, which a trial does not call: it trains "
                f"many batches in one call of the graph.\nOverride {kind}_step instead."
            )
        _check_signature(model, f"{kind}_step")
    backend.check_model(model)
    return model


def _check_signature(model: Any, name: str) -> None:
    """Check that a step accepts the arguments that the back end passes."""
    expected = backend.step_arguments
    signature = inspect.signature(getattr(model, name))
    try:
        signature.bind(*expected)
    except TypeError as error:
        raise InvalidModelError(
            f"{type(model).__name__}.{name}{signature} cannot be called on the {backend.name!r} "
            f"back end of Keras: {error}.\n"
            "Each back end has its own signature, and this one calls "
            f"{name}(self, {', '.join(expected)}).\n"
            "Change the signature, or set KERAS_BACKEND to the back end that it was written for."
        ) from error


def list_optimizers(model: Any, wrapped: Iterable[Any]) -> list[Any]:
    """Return every optimizer whose state belongs to the training state.

    These are, in this order, the optimizer of ``compile``, the optimizers in `wrapped`, and
    optimizers that are attributes of the model.
    """
    attributes = [value for _, value in sorted(vars(model).items())]
    optimizers: list[Any] = []
    for optimizer in [getattr(model, "optimizer", None), *wrapped, *attributes]:
        if isinstance(optimizer, backend.optimizer_types) and not any(
            optimizer is known_optimizer for known_optimizer in optimizers
        ):
            optimizers.append(optimizer)
    return optimizers


def list_trainable(model: Any) -> list[bool]:
    """Return whether each of the model's layers is trainable, nested layers included."""
    return [bool(layer.trainable) for layer in model._flatten_layers()]


def set_trainable(model: Any, flags: Sequence[bool]) -> None:
    """Restore a result of `list_trainable`.

    Raises:
        InvalidCheckpointError: If the model has another number of layers.
    """
    layers = list(model._flatten_layers())
    if len(layers) != len(flags):
        raise InvalidCheckpointError(
            f"the checkpoint is for a model with {len(flags)} layers, but {model.name!r} has "
            f"{len(layers)}.\nUse the code in the checkpoint's directory code/."
        )
    # Outer layers come first, because setting a layer's flag also sets it for inner layers.
    for layer, flag in zip(layers, flags, strict=True):
        if bool(layer.trainable) is not flag:
            layer.trainable = flag
