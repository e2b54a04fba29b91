"""Find the hooks that a callback implements, as opposed to Keras's empty ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from detcore_keras._keras import keras

__all__ = ["has_batch_hooks", "overrides", "wants_train_batches"]

_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def has_batch_hooks(callbacks: Iterable[Any]) -> bool:
    """Whether any callback needs to be called at each training batch.

    Such callbacks make training proceed batch by batch. Keras's own ``ModelCheckpoint`` and
    ``TensorBoard`` have the hooks, but with their usual settings do nothing in them.

    Args:
        callbacks: Keras callbacks.
    """
    return any(wants_train_batches(callback) for callback in callbacks)


def wants_train_batches(callback: Any) -> bool:
    """Whether one callback needs to be called at each training batch."""
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
    if own is getattr(kinds.ModelCheckpoint, name, None):
        return bool(getattr(callback, "save_freq", None) == "epoch")
    if own is getattr(kinds.BackupAndRestore, name, None):
        return bool(getattr(callback, "save_freq", None) == "epoch")
    if own is getattr(kinds.TensorBoard, name, None):
        return (
            callback.update_freq == "epoch"
            and not callback.write_steps_per_second
            and not callback._should_trace
        )
    return False
