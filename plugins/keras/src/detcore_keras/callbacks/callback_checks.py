"""Check a list of callbacks, and warn about problems."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from detcore.errors import InvalidExperimentError, describe
from detcore_keras.callbacks.callback_base import Callback
from detcore_keras.frameworks import keras

_logger = logging.getLogger("detcore.keras")
_OUR_MODULES = "detcore_keras."
_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def check_callbacks(callbacks: Any) -> list[Any]:
    """Return the result of ``keras_callbacks`` as a list.

    Raises:
        InvalidExperimentError: If it is not a list of Keras callbacks.
    """
    if not isinstance(callbacks, list | tuple):
        raise InvalidExperimentError(
            f"keras_callbacks returned {describe(callbacks)}; expected a list of callbacks."
        )
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            raise InvalidExperimentError(
                f"keras_callbacks returned a list with {describe(callback)}, which is not a Keras "
                "callback.\nPass instances of keras.callbacks.Callback."
            )
    return list(callbacks)


def wants_train_batches(callback: Any) -> bool:
    """Whether a callback needs to be called at each training batch.

    Such callbacks make training run batch by batch. Keras's own ``ModelCheckpoint`` and
    ``TensorBoard`` have the hooks, but do nothing in them with their usual settings.
    """
    hooks = [name for name in _BATCH_HOOKS if overrides_hook(callback, name)]
    return any(not _is_idle(callback, name) for name in hooks)


def overrides_hook(callback: Any, name: str) -> bool:
    """Whether a callback overrides a hook, in its class or on the instance."""
    if name in getattr(callback, "__dict__", {}):
        return True
    return getattr(type(callback), name, None) is not getattr(keras.callbacks.Callback, name)


def _is_idle(callback: Any, name: str) -> bool:
    """Whether the hook is Keras's own and does nothing with the callback's settings."""
    hook = getattr(type(callback), name, None)
    callback_types = keras.callbacks
    if any(
        hook is getattr(callback_type, name, None)
        for callback_type in (callback_types.ModelCheckpoint, callback_types.BackupAndRestore)
    ):
        return bool(getattr(callback, "save_freq", None) == "epoch")
    if hook is getattr(callback_types.TensorBoard, name, None):
        return (
            callback.update_freq == "epoch"
            and not callback.write_steps_per_second
            and not callback._should_trace
        )
    return False


def index_by_name(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Return the callbacks by the names under which their state is saved.

    Raises:
        InvalidExperimentError: If two have the same name.
    """
    callbacks_by_name: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for callback in callbacks:
        name = getattr(callback, "state_name", None)
        if name is None:
            kind = type(callback).__name__
            counts[kind] = counts.get(kind, 0) + 1
            name = kind if counts[kind] == 1 else f"{kind}-{counts[kind]}"
        if name in callbacks_by_name:
            other_callback = callbacks_by_name[name]
            raise InvalidExperimentError(
                f"two callbacks have the state_name {name!r}: "
                f"{type(other_callback).__qualname__} and {type(callback).__qualname__}.\n"
                "Callback state is saved under that name.\nGive each callback a different name."
            )
        callbacks_by_name[name] = callback
    return callbacks_by_name


def has_own_state(callback: Any) -> bool:
    """Whether a callback saves its state with its own ``get_state`` and ``load_state``."""
    if not (hasattr(callback, "get_state") and hasattr(callback, "load_state")):
        return False
    return getattr(type(callback), "get_state", None) is not Callback.get_state


def check_epoch_hooks(callbacks: Iterable[Any]) -> None:
    """Report epoch hooks, which are never called if the length of an epoch is unknown.

    Raises:
        InvalidExperimentError: If a detcore callback has such hooks. Other callbacks cause a
            warning.
    """
    for callback in callbacks:
        # detcore's own hooks only disable Keras's hooks, so they do not count.
        hooks = [
            name
            for name in ("on_epoch_begin", "on_epoch_end")
            if overrides_hook(callback, name)
            and not getattr(callback, name).__module__.startswith(_OUR_MODULES)
        ]
        if not hooks:
            continue
        problem = (
            f"the callback {type(callback).__qualname__} has {' and '.join(hooks)}, but the length "
            "of an epoch is unknown: records_per_epoch is not set, and the training data has no "
            "known length."
        )
        fix = "Set records_per_epoch in the experiment file."
        if isinstance(callback, Callback):
            raise InvalidExperimentError(f"{problem}\nThese hooks would never be called.\n{fix}")
        _logger.warning("%s These hooks are never called. %s", problem, fix)
