"""The native form for Keras: ``init``, which the Keras plugin provides."""

from __future__ import annotations

from typing import Any

from detcore.experimental.native_init import native_init

__all__ = ["init"]


def init(*args: Any, **kwargs: Any) -> Any:
    """Create the context with which a script trains a Keras model.

    Args:
        args: As for ``detcore_keras.init``.
        kwargs: As for ``detcore_keras.init``.

    Returns:
        A ``detcore_keras.TFKerasNativeContext``.

    Raises:
        PluginNotFoundError: If the plugin, or TensorFlow, is not installed.
        DetcoreError: As ``detcore_keras.init``.
    """
    return native_init("keras")(*args, **kwargs)
