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
        "With tensorflow==2.15.*, estimators of tf.estimator can also be trained."
    ) from error

# TensorFlow has no type information.
tf: Any = tensorflow
tf1: Any = tf.compat.v1


def tf_estimator() -> ModuleType | None:
    """Return the module ``tf.estimator``, or None where TensorFlow lacks it (2.16 and later)."""
    if importlib.util.find_spec("tensorflow_estimator") is None:
        return None
    module: ModuleType | None = getattr(tf, "estimator", None)
    return module


@contextlib.contextmanager
def keras_counts_of_graph() -> Iterator[None]:
    """Let Keras restart its numbering of layers and seeds while a graph is built.

    Keras 2 counts per graph, so all graphs of a model have the same variable names. Keras 3 counts
    per thread, and would read ``dense_1/kernel`` from a checkpoint that contains ``dense/kernel``.
    Its global seed generator has a variable in the first graph that used it. Both are restored
    after the block.
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
    """Return the object with Keras 3's counters for this thread, if Keras is imported."""
    # Keras has no public name for this object. Checked on 3.15.
    module: Any = sys.modules.get("keras.src.backend.common.global_state")
    return SimpleNamespace() if module is None else module.GLOBAL_STATE_TRACKER


@contextlib.contextmanager
def global_generator_of_graph(seed: int | None) -> Iterator[None]:
    """Use a separate global generator for the graph that is being built.

    TensorFlow's global generator has a random seed, and a variable in the first graph that used it,
    so other graphs cannot use it. With deterministic operations, it must be set explicitly.

    Args:
        seed: Seed of the graph; None = a different seed each time.
    """
    from tensorflow.python.ops import stateful_random_ops

    before = stateful_random_ops.global_generator  # has no public name
    tf.random.set_global_generator(_GeneratorOnUse(seed))
    try:
        yield
    finally:
        tf.random.set_global_generator(before)


class _GeneratorOnUse:
    """A generator created on first use, so that only models that use it have its variable."""

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._made: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._made is None:
            with tf.init_scope():
                generator = tf.random.Generator
                new_generator = (
                    generator.from_non_deterministic_state()
                    if self._seed is None
                    else generator.from_seed(self._seed)
                )
            self._made = new_generator
        return getattr(self._made, name)


@contextlib.contextmanager
def quiet_deprecations() -> Iterator[None]:
    """Suppress TensorFlow's deprecation warnings about calls of this plugin.

    TensorFlow prints each warning once per process, so later calls of the user print none.
    """
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
