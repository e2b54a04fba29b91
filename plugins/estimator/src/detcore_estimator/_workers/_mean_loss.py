"""Compute the loss over the records of an evaluation, independent of the batches."""

from __future__ import annotations

from typing import Any

from detcore_estimator._tf import tf, tf1

__all__ = ["mean_loss"]


def mean_loss(loss: Any, num_records: Any) -> tuple[Any, Any]:
    """Return the mean of the batches' losses, weighted by their records, as a metric.

    A loss that is a mean over the records of a batch thus becomes the mean over all records: a
    short last batch has its proper weight, and the number of workers makes no difference.

    Args:
        loss: The loss of a batch, ``()``.
        num_records: The records of the batch, ``(), int64``.

    Returns:
        The tensor with the value, float64, and the operation that takes in a batch.
    """
    with tf1.variable_scope(None, default_name="detcore_loss"):
        total, count = (_sum_variable(name) for name in ("total", "count"))
        weight = tf.cast(num_records, tf.float64)
        # A batch of no records has a loss of NaN.
        share = tf.math.multiply_no_nan(tf.cast(loss, tf.float64), weight)
        update = tf.group(
            total.assign_add(share, read_value=False), count.assign_add(weight, read_value=False)
        )
        return tf.math.divide(total.read_value(), count.read_value()), update


def _sum_variable(name: str) -> Any:
    return tf1.get_variable(
        name,
        shape=(),
        dtype=tf.float64,
        initializer=tf1.zeros_initializer(),
        trainable=False,
        collections=[tf1.GraphKeys.LOCAL_VARIABLES, tf1.GraphKeys.METRIC_VARIABLES],
        use_resource=True,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )
