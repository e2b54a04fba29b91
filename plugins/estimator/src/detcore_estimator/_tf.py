"""TensorFlow, and what differs between its versions."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from detcore.errors import PluginNotFoundError

__all__ = ["quiet_deprecations", "tf", "tf1", "tf_estimator"]

try:
    import tensorflow
except ModuleNotFoundError as error:
    raise PluginNotFoundError(
        "detcore_estimator needs TensorFlow, which is not installed in this environment "
        f"({sys.prefix}).\n"
        '  pip install "tensorflow>=2.15"\n'
        "With tensorflow==2.15.* the estimators of tf.estimator can be trained, too."
    ) from error

# TensorFlow has no type information of its own.
tf: Any = tensorflow
tf1: Any = tf.compat.v1


def tf_estimator() -> ModuleType | None:
    """Return the module ``tf.estimator``, or None where TensorFlow no longer has it (2.16)."""
    if importlib.util.find_spec("tensorflow_estimator") is None:
        return None
    module: ModuleType | None = getattr(tf, "estimator", None)
    return module


@contextlib.contextmanager
def quiet_deprecations() -> Iterator[None]:
    """Keep TensorFlow from advising users to replace what this plugin, not they, calls.

    It gives each such advice once in a process, so that the user's own calls are not told either.
    """
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
