"""Provide the saver of a model that is built but not trained."""

from __future__ import annotations

from typing import Any

from detcore_estimator._tf import tf, tf1

__all__ = ["ObjectSaver", "built_saver"]


class ObjectSaver:
    """Reads object-based checkpoints into a graph, and writes by the variables' names.

    For a scaffold whose saver is a ``tf.train.Checkpoint``: training's checkpoints have the names
    of objects, while the variables of a SavedModel have those of the graph.

    Args:
        checkpoint: The ``tf.train.Checkpoint``.
    """

    def __init__(self, checkpoint: Any) -> None:
        self._checkpoint = checkpoint
        self._by_name = tf1.train.Saver(sharded=True)

    def restore(self, session: Any, path: str) -> None:
        """Restore the variables from an object-based checkpoint."""
        status = self._checkpoint.read(path)
        status.assert_existing_objects_matched().run_restore_ops(session)

    def save(self, *args: Any, **kwargs: Any) -> Any:
        """Write the variables by name; see ``tf.compat.v1.train.Saver.save``."""
        return self._by_name.save(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._by_name, name)


def built_saver(scaffold: Any) -> Any:
    """Return a scaffold's saver, or one of all variables; call it with the graph as default.

    Args:
        scaffold: ``tf.compat.v1.train.Scaffold``, not finalized.

    Returns:
        A ``tf.compat.v1.train.Saver`` that needs no further operations, or an `ObjectSaver`.
    """
    saver = scaffold.saver
    if isinstance(saver, tf.train.Checkpoint):
        return ObjectSaver(saver)
    if saver is None:
        return tf1.train.Saver(sharded=True)
    if saver.saver_def is None:
        saver.build()
    return saver
