"""Extend scaffolds, the user's settings for opening a session."""

from __future__ import annotations

from typing import Any

from detcore_estimator.tensorflow_versions import tf, tf1


def own_saver(graph: Any, scaffold: Any) -> Any:
    """Return the saver that the user's code created for a graph, or None.

    A ``tf.train.Checkpoint`` saves all variables under object names. A trial also saves all
    variables, under their own names, so such a saver is ignored.

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
            # Like the scaffold's own saver, in the collection where the scaffold searches.
            savers = [tf1.train.Saver(sharded=True, allow_empty=True)]
            graph.add_to_collection(tf1.GraphKeys.SAVERS, savers[0])
        saver = savers[0]
    if saver.saver_def is None:
        saver.build()
    return saver


def scaffold_with_saver(scaffold: Any) -> Any:
    """Return the user's scaffold, or a scaffold that saves all variables.

    The saver of Keras models converted to Estimators is a ``tf.train.Checkpoint``, which needs to
    be replaced.

    Args:
        scaffold: The scaffold of the user's ``EstimatorSpec``.
    """
    if scaffold.saver is None or isinstance(scaffold.saver, tf1.train.Saver):
        return scaffold
    saver = tf1.train.Saver(sharded=True, allow_empty=True, defer_build=True)
    return tf1.train.Scaffold(saver=saver, copy_from_scaffold=scaffold)


def with_local_variables(scaffold: Any) -> Any:
    """Return a scaffold that initializes all local variables, not only the user's.

    The user's operation was created before some variables, such as those of the mean loss. Call it
    when all metrics exist.

    Args:
        scaffold: ``tf.compat.v1.train.Scaffold``, not finalized.
    """
    if scaffold.local_init_op is None:
        return scaffold
    return tf1.train.Scaffold(
        local_init_op=tf.group(scaffold.local_init_op, tf1.train.Scaffold.default_local_init_op()),
        copy_from_scaffold=scaffold,
    )
