"""The native form for Estimators: ``init``, which the Estimator plugin provides."""

from __future__ import annotations

from typing import Any

from detcore.experimental.native_init import native_init

__all__ = ["init"]


def init(*args: Any, **kwargs: Any) -> Any:
    """Create the context with which a script trains an estimator.

    Args:
        args: As for ``detcore_estimator.init``.
        kwargs: As for ``detcore_estimator.init``.

    Returns:
        A ``detcore_estimator.EstimatorNativeContext``.

    Raises:
        PluginNotFoundError: If the plugin, or TensorFlow, is not installed.
        DetcoreError: As ``detcore_estimator.init``.
    """
    return native_init("estimator")(*args, **kwargs)
