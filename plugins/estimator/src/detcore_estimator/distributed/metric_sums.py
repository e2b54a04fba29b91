"""Merge the validation metrics of several workers by summing their counts."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from detcore.errors import DataError, InvalidModelError, MetricError
from detcore_estimator.distributed.worker_variables import map_handles
from detcore_estimator.graph.random_ops import find_upstream
from detcore_estimator.graph.variable_transfer import assign_values
from detcore_estimator.tensorflow_versions import tf, tf1

if TYPE_CHECKING:
    from detcore.distributed import DistributedContext


_logger = logging.getLogger("detcore.estimator")
Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _WorkerShare:
    """One worker's counts, values that cannot be summed, and number of records."""

    num_records: int
    sums: list[Array]
    values: dict[str, Array]


class MetricSums:
    """Merges the metrics of an evaluation graph over all workers.

    The metrics of ``tf.compat.v1.metrics`` and of Keras keep their counts in variables whose
    aggregation is SUM. These counts are summed over the workers, and the metric's value is read
    from the sums, so it does not depend on the split of the records. Metrics of ``make_metric``
    merge their own states. Metrics with state in other variables cannot be merged exactly. They
    become the mean over the workers, weighted by their records.

    Args:
        graph: The complete evaluation graph.
        values: The tensor with the value of each metric, by name.
        reduced: Names of operations whose values are already over all workers.
    """

    def __init__(self, graph: Any, values: Mapping[str, Any], reduced: Collection[str]) -> None:
        keys = (tf1.GraphKeys.LOCAL_VARIABLES, tf1.GraphKeys.METRIC_VARIABLES)
        local = map_handles(variable for key in keys for variable in graph.get_collection(key))
        self._values = dict(values)
        self._means: list[str] = []
        sums: dict[Any, Any] = {}
        for name, value in values.items():
            sources = find_upstream([value if isinstance(value, tf.Operation) else value.op])
            variables = {op: local[op] for op in sources if op in local}
            additive = {
                op: count_variable
                for op, count_variable in variables.items()
                if getattr(getattr(count_variable, "aggregation", None), "name", None) == "SUM"
            }
            is_reduced = any(op.name in reduced for op in sources)
            if is_reduced or len(additive) == len(variables):
                sums.update(additive)
            else:
                self._means.append(name)
        self._sums = list(sums.values())
        self._has_warned = False

    def merge_workers(
        self, session: Any, num_records: int, distributed: DistributedContext
    ) -> tuple[dict[str, Any], int]:
        """Return the values and the records over all workers. All workers call it together.

        Args:
            session: The session, after this worker's batches.
            num_records: Number of records in these batches.
            distributed: The workers.

        Raises:
            DataError: If no worker had a record.
            MetricError: If a metric can be neither summed nor averaged.
        """
        if distributed.get_rank() == 0:
            self._warn_of_means()
        own_share = _WorkerShare(
            num_records=num_records,
            sums=[np.asarray(value) for value in session.run(self._sums)],
            values=session.run({name: self._values[name] for name in self._means}),
        )
        shares = [share for share in distributed.allgather(own_share) if share.num_records]
        if not shares:
            raise DataError(
                f"the validation dataset has no batch on any of {distributed.get_size()} workers.\n"
                "Check its filters. With drop_remainder=True, a batch size larger than a worker's "
                "part of the data also leaves no batch."
            )
        assign_values(session, self._sums, _add_shares(shares))
        values = dict(session.run(self._values))
        for name in self._means:
            values[name] = _weighted_mean(name, shares)
        # All workers need the same bits, because they decide based on these values.
        return distributed.broadcast(values), sum(share.num_records for share in shares)

    def _warn_of_means(self) -> None:
        if self._means and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "these validation metrics keep their state in variables whose aggregation is not "
                "SUM: %s. Their mean over the workers is reported, weighted by records. It may "
                "differ from the value over all data. For exact values, use context.make_metric",
                ", ".join(self._means),
            )


def _add_shares(shares: Sequence[_WorkerShare]) -> list[Array]:
    totals = []
    for parts in zip(*(share.sums for share in shares), strict=True):
        kind = parts[0].dtype
        if any(part.shape != parts[0].shape for part in parts):
            raise InvalidModelError(
                "a metric's variable has the shapes "
                f"{', '.join(str(part.shape) for part in parts)} on different workers.\n"
                "Metrics that are summed over workers need variables of fixed shape. Use "
                "context.make_metric for other metrics."
            )
        wide = np.float64 if kind.kind == "f" else None
        totals.append(np.sum(np.stack(parts), axis=0, dtype=wide).astype(kind))
    return totals


def _weighted_mean(name: str, shares: Sequence[_WorkerShare]) -> Any:
    values = [np.asarray(share.values[name]) for share in shares]
    if all(np.array_equal(value, values[0]) for value in values):
        return values[0]
    if any(v.dtype.kind not in "biuf" or v.shape != values[0].shape for v in values):
        raise MetricError(
            f"the validation metric {name!r} cannot be merged over {len(values)} workers: its "
            f"values are {', '.join(f'{v.dtype} {v.shape}' for v in values)}.\n"
            "Create it with context.make_metric, whose reducer sees the data of all workers."
        )
    weights = [float(share.num_records) for share in shares]
    return np.average(np.stack(values).astype(np.float64), axis=0, weights=weights)


def mean_loss(loss: Any, num_records: Any) -> tuple[Any, Any]:
    """Return the mean of the batches' losses, weighted by their records, as a metric.

    A loss that is a mean over the records of a batch becomes the mean over all records. It does not
    depend on short batches or on the number of workers.

    Args:
        loss: The loss of a batch, ``()``.
        num_records: The records of the batch, ``(), int64``.

    Returns:
        The tensor with the value, float64, and the operation that adds a batch.
    """
    with tf1.variable_scope(None, default_name="detcore_loss"):
        total, count = (_sum_variable(name) for name in ("total", "count"))
        weight = tf.cast(num_records, tf.float64)
        # An empty batch has a loss of NaN.
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
