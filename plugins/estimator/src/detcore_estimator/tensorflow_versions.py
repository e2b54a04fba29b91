"""Import TensorFlow, and hide the differences between its versions."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

from detcore.errors import PluginNotFoundError

try:
    import tensorflow
except ModuleNotFoundError as error:
    raise PluginNotFoundError(
        "detcore_estimator needs TensorFlow, which is not installed in this environment "
        f"({sys.prefix}).\n"
        '  pip install "tensorflow>=2.15"\n'
        "With tensorflow==2.15.* the estimators of tf.estimator can be trained, too."
    ) from error

# TensorFlow has no type information.
tf: Any = tensorflow
tf1: Any = tf.compat.v1


def tf_estimator() -> ModuleType | None:
    """Return the module ``tf.estimator``, or None where TensorFlow no longer has it (2.16)."""
    if importlib.util.find_spec("tensorflow_estimator") is None:
        return None
    module: ModuleType | None = getattr(tf, "estimator", None)
    return module


@contextlib.contextmanager
def keras_counts_of_graph() -> Iterator[None]:
    """Let Keras restart its numbering of layers and seeds while a graph is built.

    Keras 2 counts for each graph, so that each graph of a model has variables of the same names.
    Keras 3 counts in the thread, and would read ``dense_1/kernel`` from a checkpoint that was
    written as ``dense/kernel``; its global seed generator has a variable in the first graph that
    used it. Both are as before afterwards.
    """
    names = ("object_name_uids", "global_seed_generator")
    state = _keras_state()
    before = {name: getattr(state, name, None) for name in names}
    try:
        for name in names:
            setattr(state, name, None)
        yield
    finally:
        # The model function may have been the first to import Keras.
        state = _keras_state()
        for name, value in before.items():
            setattr(state, name, value)


def _keras_state() -> Any:
    """Return the attributes in which Keras 3 counts in this thread, once it is imported."""
    # Keras has no public name for it. Checked on 3.15.
    module: Any = sys.modules.get("keras.src.backend.common.global_state")
    return SimpleNamespace() if module is None else module.GLOBAL_STATE_TRACKER


@contextlib.contextmanager
def global_generator_of_graph(seed: int | None) -> Iterator[None]:
    """Let TensorFlow's global generator be one of the graph that is built.

    It is a variable in the first graph that used it, unusable in others, with a random seed; under
    determinism it must be set explicitly.

    Args:
        seed: Of the graph; None = a different one each time.
    """
    from tensorflow.python.ops import stateful_random_ops

    before = stateful_random_ops.global_generator  # no public name says whether there is one
    tf.random.set_global_generator(_GeneratorOnUse(seed))
    try:
        yield
    finally:
        tf.random.set_global_generator(before)


class _GeneratorOnUse:
    """A generator that is made when it is used, so that no other model has its variable."""

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._made: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._made is None:
            with tf.init_scope():
                generator = tf.random.Generator
                made = (
                    generator.from_non_deterministic_state()
                    if self._seed is None
                    else generator.from_seed(self._seed)
                )
            self._made = made
        return getattr(self._made, name)


@contextlib.contextmanager
def quiet_deprecations() -> Iterator[None]:
    """Keep TensorFlow from advising users to replace calls that this plugin makes.

    It gives each such advice once in a process, so that the user's own calls are not told either.
    """
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
