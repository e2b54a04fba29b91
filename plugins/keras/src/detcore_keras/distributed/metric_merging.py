"""Merge the states of metrics after a validation on several workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore.errors import DataError, InvalidModelError
from detcore_keras.backends.backend import EvaluationOutputs
from detcore_keras.frameworks import backend, keras

if TYPE_CHECKING:
    from detcore.distributed import DistributedContext


_State: TypeAlias = list[npt.NDArray[Any]]
# A metric's results inside and outside a graph may differ in the last bits.
_SAME = 1e-5


@dataclasses.dataclass(frozen=True, slots=True)
class _WorkerResults:
    """One worker's metric states, metric results, and test step outputs."""

    num_batches: int
    n_records: int
    outputs: dict[str, float]
    results: dict[str, float]
    states: list[_State]


def merge_results(
    model: Any, tested: EvaluationOutputs, distributed: DistributedContext
) -> tuple[dict[str, float], int]:
    """Return the metrics and the number of records over all workers. All workers must call it.

    The variables of metrics are summed, or merged by the metric's own ``merge_state``. Then the
    results are computed again. Test step outputs that are not metric results are averaged over the
    workers with batches, weighted by their records.

    Args:
        model: The model, right after its share was evaluated. Its metrics are changed.
        tested: Result for this worker's share.
        distributed: The workers.

    Raises:
        DataError: If no worker had a batch.
        InvalidModelError: If the variables of a metric cannot be summed.
    """
    metrics = backend.list_metrics(model)
    own_share = _WorkerResults(
        num_batches=tested.num_batches,
        n_records=tested.n_records,
        outputs=_list_numbers(tested.outputs),
        results=_list_numbers(model.get_metrics_result()),
        states=[[_read_value(variable) for variable in metric.variables] for metric in metrics],
    )
    shares: list[_WorkerResults] = distributed.allgather(own_share)
    shares_with_data = [share for share in shares if share.num_batches]
    if not shares_with_data:
        raise DataError(
            f"the validation data is empty: none of the {len(shares)} workers has a batch.\n"
            "Check the filters in build_validation_data_loader, and drop_remainder."
        )
    merged: dict[str, float] | None = None
    if _has_same_shapes(metrics, shares_with_data[0].states):
        for index, metric in enumerate(metrics):
            _merge_states(metric, [share.states[index] for share in shares_with_data])
        merged = _name_results(shares_with_data, _list_numbers(model.get_metrics_result()))
    # A worker without a batch may have metrics without variables. The last bits may differ between
    # machines, but decisions based on metrics must be the same on all workers.
    merged_by_worker: list[dict[str, float] | None] = distributed.allgather(merged)
    merged_metrics = next(candidate for candidate in merged_by_worker if candidate is not None)
    return merged_metrics, sum(share.n_records for share in shares)


def _has_same_shapes(metrics: Sequence[Any], states: Sequence[_State]) -> bool:
    return [[v.shape for v in state] for state in states] == [
        [tuple(backend.get_raw(v).shape) for v in metric.variables] for metric in metrics
    ]


def _merge_states(metric: Any, states: Sequence[_State]) -> None:
    """Set a metric to the combined state of several workers."""
    merge = getattr(type(metric), "merge_state", None)
    if merge not in (None, getattr(keras.metrics.Metric, "merge_state", None)):
        other_metrics = [_copy_metric(metric, state) for state in states[1:]]
        _assign_state(metric, states[0])
        metric.merge_state(other_metrics)
        return
    metric.reset_state()
    for index, variable in enumerate(metric.variables):
        initial_value = _read_value(variable)
        values = [state[index] for state in states]
        backend.get_raw(variable).assign(_add_values(metric, variable, initial_value, values))


def _read_value(variable: Any) -> npt.NDArray[Any]:
    return np.array(backend.read_variable(backend.get_raw(variable)))


def _add_values(metric: Any, variable: Any, start: Any, values: Sequence[Any]) -> Any:
    if all(np.array_equal(value, start) for value in values):
        return start
    numeric = start.dtype.kind in "iuf" or start.dtype.kind == "V"
    if not (
        numeric
        and _get_aggregation(variable) == "sum"
        and np.all(np.isfinite(start.astype(np.float64)))
    ):
        if all(np.array_equal(value, values[0]) for value in values):
            return values[0]
        raise InvalidModelError(
            f"the metric {metric.name!r} ({type(metric).__name__}) keeps the variable "
            f"{variable.name!r} (aggregation {_get_aggregation(variable)}, initial value "
            f"{start.reshape(-1)[:1].tolist()}), which is not a sum over records.\n"
            "Each worker validates on a part of the data, and their values cannot be added up.\n"
            "Keep sums in variables from self.add_weight(...) that start as zeros, or define "
            f"merge_state(self, metrics) in {type(metric).__name__}."
        )
    exact = np.int64 if start.dtype.kind in "iu" else np.float64
    base = start.astype(exact)
    total = base + sum(value.astype(exact) - base for value in values)
    return np.asarray(total).astype(start.dtype)


def _get_aggregation(variable: Any) -> str:
    return str(getattr(variable, "aggregation", None)).rpartition(".")[2].lower()


def _copy_metric(metric: Any, state: _State) -> Any:
    copy = type(metric).from_config(metric.get_config())
    if [tuple(backend.get_raw(v).shape) for v in copy.variables] != [v.shape for v in state]:
        raise InvalidModelError(
            f"the metric {metric.name!r} ({type(metric).__name__}) defines merge_state, but "
            f"{type(metric).__name__}.from_config(metric.get_config()) returns a metric with "
            "other variables.\n"
            "The states of other workers are loaded into such copies.\n"
            "Create the variables in __init__, and return all its arguments from get_config."
        )
    _assign_state(copy, state)
    return copy


def _assign_state(metric: Any, state: _State) -> None:
    for variable, value in zip(metric.variables, state, strict=True):
        backend.get_raw(variable).assign(value)


def _name_results(
    shares: Sequence[_WorkerResults], merged: Mapping[str, float]
) -> dict[str, float]:
    """Return each output of the test step, from the metric that computes it or as the mean."""
    results = {}
    for name in shares[0].outputs:
        # A metric computes the output if their values agree on every worker. A metric with the same
        # name comes first.
        sources = [
            source
            for source in sorted(shares[0].results, key=lambda result: result != name)
            if all(_is_same(name, source, share) for share in shares)
        ]
        if sources:
            results[name] = merged[sources[0]]
            continue
        weights = [share.n_records for share in shares]
        values = [share.outputs[name] for share in shares]
        results[name] = float(np.average(values, weights=weights if any(weights) else None))
    return results


def _is_same(name: str, source: str, share: _WorkerResults) -> bool:
    return source in share.results and bool(
        np.isclose(share.outputs[name], share.results[source], rtol=_SAME, atol=0, equal_nan=True)
    )


def _list_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are single numbers. Nested dicts are flattened."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            numbers.update(_list_numbers(value))
        elif np.ndim(value) == 0:
            numbers[name] = float(value)
    return numbers
