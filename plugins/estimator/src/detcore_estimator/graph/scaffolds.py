"""Prepare scaffolds, the user's settings for opening a session, with our additions."""

from __future__ import annotations

from typing import Any

from detcore_estimator.tensorflow_versions import tf, tf1


def own_saver(graph: Any, scaffold: Any) -> Any:
    """Return the saver that the user's code made for a graph, or None.

    A ``tf.train.Checkpoint`` saves all variables under the names of objects. A trial saves all of
    them, too, under their own names, so it does not count.

    Args:
        graph: The graph, before its scaffold is finalized.
        scaffold: The scaffold of the user's ``EstimatorSpec``.
    """
    if isinstance(scaffold.saver, tf1.train.Saver):
        return scaffold.saver
    return next(iter(graph.get_collection(tf1.GraphKeys.SAVERS)), None)


def build_saver(graph: Any, scaffold: Any) -> Any:
    """Return the saver that a scaffold will have when it is finalized, and build it now.

    Args:
        graph: The graph, complete except for the scaffold's additions.
        scaffold: Result of `scaffold_with_saver`.
    """
    saver = scaffold.saver
    if saver is None:
        savers = graph.get_collection(tf1.GraphKeys.SAVERS)
        if not savers:
            # As the scaffold would make it, in the collection where it looks for one.
            savers = [tf1.train.Saver(sharded=True, allow_empty=True)]
            graph.add_to_collection(tf1.GraphKeys.SAVERS, savers[0])
        saver = savers[0]
    if saver.saver_def is None:
        saver.build()
    return saver


def scaffold_with_saver(scaffold: Any) -> Any:
    """Return the scaffold to open a session with: the user's, or one that saves all variables.

    Keras models that were turned into Estimators have a ``tf.train.Checkpoint`` as their saver.

    Args:
        scaffold: The scaffold of the user's ``EstimatorSpec``.
    """
    if scaffold.saver is None or isinstance(scaffold.saver, tf1.train.Saver):
        return scaffold
    saver = tf1.train.Saver(sharded=True, allow_empty=True, defer_build=True)
    return tf1.train.Scaffold(saver=saver, copy_from_scaffold=scaffold)


def with_local_variables(scaffold: Any) -> Any:
    """Return a scaffold that initializes all local variables, and not only the user's.

    The user's own operation was made before the variables of the loss's mean, for example. Call it
    when all metrics are there.

    Args:
        scaffold: ``tf.compat.v1.train.Scaffold``, not finalized.
    """
    if scaffold.local_init_op is None:
        return scaffold
    return tf1.train.Scaffold(
        local_init_op=tf.group(scaffold.local_init_op, tf1.train.Scaffold.default_local_init_op()),
        copy_from_scaffold=scaffold,
    )
