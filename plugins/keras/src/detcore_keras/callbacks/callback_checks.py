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


def checked_callbacks(callbacks: Any) -> list[Any]:
    """Return the result of ``keras_callbacks`` as a list.

    Raises:
        InvalidExperimentError: If it is not a list of Keras callbacks.
    """
    if not isinstance(callbacks, list | tuple):
        raise InvalidExperimentError(
            f"keras_callbacks returned {describe(callbacks)}; it returns a list of callbacks."
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

    Such callbacks make training proceed batch by batch. Keras's own ``ModelCheckpoint`` and
    ``TensorBoard`` have the hooks, but with their usual settings do nothing in them.
    """
    hooks = [name for name in _BATCH_HOOKS if overrides(callback, name)]
    return any(not _is_idle(callback, name) for name in hooks)


def overrides(callback: Any, name: str) -> bool:
    """Whether a callback overrides a hook, in its class or on the instance."""
    if name in getattr(callback, "__dict__", {}):
        return True
    return getattr(type(callback), name, None) is not getattr(keras.callbacks.Callback, name)


def _is_idle(callback: Any, name: str) -> bool:
    """Whether the hook is Keras's own and does nothing with the callback's settings."""
    own = getattr(type(callback), name, None)
    kinds = keras.callbacks
    if any(own is getattr(k, name, None) for k in (kinds.ModelCheckpoint, kinds.BackupAndRestore)):
        return bool(getattr(callback, "save_freq", None) == "epoch")
    if own is getattr(kinds.TensorBoard, name, None):
        return (
            callback.update_freq == "epoch"
            and not callback.write_steps_per_second
            and not callback._should_trace
        )
    return False


def by_name(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Return the callbacks by the names under which their state is saved.

    Raises:
        InvalidExperimentError: If two have the same name.
    """
    named: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for callback in callbacks:
        name = getattr(callback, "state_name", None)
        if name is None:
            kind = type(callback).__name__
            counts[kind] = counts.get(kind, 0) + 1
            name = kind if counts[kind] == 1 else f"{kind}-{counts[kind]}"
        if name in named:
            raise InvalidExperimentError(
                f"two callbacks have the state_name {name!r}: {type(named[name]).__qualname__} and "
                f"{type(callback).__qualname__}.\n"
                "Their state is saved by that name.\nGive each a different name."
            )
        named[name] = callback
    return named


def has_own_state(callback: Any) -> bool:
    """Whether a callback saves its state by its own ``get_state`` and ``load_state``."""
    if not (hasattr(callback, "get_state") and hasattr(callback, "load_state")):
        return False
    return getattr(type(callback), "get_state", None) is not Callback.get_state


def check_epoch_hooks(callbacks: Iterable[Any]) -> None:
    """Report hooks for epochs if the length of an epoch is unknown.

    Raises:
        InvalidExperimentError: If a detcore callback has such hooks; others cause a warning.
    """
    for callback in callbacks:
        # Hooks of ours, which only disable Keras's, do not count.
        hooks = [
            name
            for name in ("on_epoch_begin", "on_epoch_end")
            if overrides(callback, name)
            and not getattr(callback, name).__module__.startswith(_OUR_MODULES)
        ]
        if not hooks:
            continue
        problem = (
            f"the callback {type(callback).__qualname__} has {' and '.join(hooks)}, but the length "
            "of an epoch is not known: records_per_epoch is not set, and the training data does "
            "not tell its length."
        )
        fix = "Set records_per_epoch in the experiment file."
        if isinstance(callback, Callback):
            raise InvalidExperimentError(f"{problem}\nThey would never be called.\n{fix}")
        _logger.warning("%s They are never called. %s", problem, fix)
