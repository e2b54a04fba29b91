"""Merge the states of metrics after a validation on several workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from detcore.errors import DataError, InvalidModelError
from detcore_keras.frameworks import KERAS_MAJOR, keras
from detcore_keras.state.variables import raw_variable

if TYPE_CHECKING:
    from detcore.distributed import DistributedContext


_State: TypeAlias = list[npt.NDArray[Any]]
# A metric's result inside a graph and outside of it may differ in the last bits.
_SAME = 1e-5


@dataclasses.dataclass(frozen=True, slots=True)
class Tested:
    """Result of a pass over data.

    Attributes:
        outputs: Outputs of the last step; empty without a batch.
        num_batches: Number of batches.
        n_records: Number of records in them.
    """

    outputs: Mapping[str, Any]
    num_batches: int
    n_records: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Share:
    """Results of one worker: the states and results of its metrics, and its test step's outputs."""

    num_batches: int
    n_records: int
    outputs: dict[str, float]
    results: dict[str, float]
    states: list[_State]


def merge_results(
    model: Any, tested: Tested, distributed: DistributedContext
) -> tuple[dict[str, float], int]:
    """Return the metrics and the number of records over all workers; all of them must call it.

    The variables of metrics are summed, or merged by the metric's own ``merge_state``; then the
    results are computed again. An output of the test step that is no metric's result becomes the
    mean over the workers that had batches, weighted by their records.

    Args:
        model: The model, right after its share was evaluated. Its metrics are changed.
        tested: Result for this worker's share.
        distributed: The workers.

    Raises:
        DataError: If no worker had a batch.
        InvalidModelError: If the variables of a metric cannot be summed.
    """
    metrics = _list_metrics(model)
    mine = _Share(
        num_batches=tested.num_batches,
        n_records=tested.n_records,
        outputs=_numbers(tested.outputs),
        results=_numbers(model.get_metrics_result()),
        states=[
            [np.array(raw_variable(variable).numpy()) for variable in metric.variables]
            for metric in metrics
        ],
    )
    shares: list[_Share] = distributed.allgather(mine)
    used = [share for share in shares if share.num_batches]
    if not used:
        raise DataError(
            f"the validation data is empty: none of the {len(shares)} workers has a batch.\n"
            "Look at what build_validation_data_loader filters out, and at drop_remainder."
        )
    merged: dict[str, float] | None = None
    if _fits(metrics, used[0].states):
        for index, metric in enumerate(metrics):
            _merge(metric, [share.states[index] for share in used])
        merged = _name_results(used, _numbers(model.get_metrics_result()))
    # A worker without a batch may have metrics without variables. The last bits may differ between
    # machines, but decisions based on metrics must be the same everywhere.
    answers: list[dict[str, float] | None] = distributed.allgather(merged)
    final = next(answer for answer in answers if answer is not None)
    return final, sum(share.n_records for share in shares)


def _list_metrics(model: Any) -> list[Any]:
    """Return the metrics of a model, with nested ones in place of their containers."""
    found: list[Any] = []
    for metric in model.metrics:
        inner = getattr(metric, "metrics", None) if KERAS_MAJOR == 3 else None
        found.extend(inner if inner else [metric])
    return found


def _fits(metrics: Sequence[Any], states: Sequence[_State]) -> bool:
    return [[v.shape for v in state] for state in states] == [
        [tuple(raw_variable(v).shape) for v in metric.variables] for metric in metrics
    ]


def _merge(metric: Any, states: Sequence[_State]) -> None:
    """Set a metric to the combined state of several workers."""
    merge = getattr(type(metric), "merge_state", None)
    if merge not in (None, getattr(keras.metrics.Metric, "merge_state", None)):
        others = [_copy_with(metric, state) for state in states[1:]]
        _assign(metric, states[0])
        metric.merge_state(others)
        return
    metric.reset_state()
    for index, variable in enumerate(metric.variables):
        start = np.array(raw_variable(variable).numpy())
        values = [state[index] for state in states]
        raw_variable(variable).assign(_added(metric, variable, start, values))


def _added(metric: Any, variable: Any, start: Any, values: Sequence[Any]) -> Any:
    if all(np.array_equal(value, start) for value in values):
        return start
    numeric = start.dtype.kind in "iuf" or start.dtype.kind == "V"
    if not (
        numeric
        and _aggregation(variable) == "sum"
        and np.all(np.isfinite(start.astype(np.float64)))
    ):
        if all(np.array_equal(value, values[0]) for value in values):
            return values[0]
        raise InvalidModelError(
            f"the metric {metric.name!r} ({type(metric).__name__}) keeps the variable "
            f"{variable.name!r} (aggregation {_aggregation(variable)}, initial value "
            f"{start.reshape(-1)[:1].tolist()}), which is not a sum over records.\n"
            "Each worker validates on a part of the data, and their values cannot be added up.\n"
            "Keep sums in variables made by self.add_weight(...) that begin with zeros, or give "
            f"{type(metric).__name__} a method merge_state(self, metrics)."
        )
    exact = np.int64 if start.dtype.kind in "iu" else np.float64
    base = start.astype(exact)
    total = base + sum(value.astype(exact) - base for value in values)
    return np.asarray(total).astype(start.dtype)


def _aggregation(variable: Any) -> str:
    return str(getattr(variable, "aggregation", None)).rpartition(".")[2].lower()


def _copy_with(metric: Any, state: _State) -> Any:
    copy = type(metric).from_config(metric.get_config())
    if [tuple(raw_variable(v).shape) for v in copy.variables] != [v.shape for v in state]:
        raise InvalidModelError(
            f"the metric {metric.name!r} ({type(metric).__name__}) merges states by itself, but "
            f"{type(metric).__name__}.from_config(metric.get_config()) makes one with other "
            "variables.\n"
            "The states of other workers are put into such copies.\n"
            "Make the variables in __init__, and let get_config return all of its arguments."
        )
    _assign(copy, state)
    return copy


def _assign(metric: Any, state: _State) -> None:
    for variable, value in zip(metric.variables, state, strict=True):
        raw_variable(variable).assign(value)


def _name_results(shares: Sequence[_Share], merged: Mapping[str, float]) -> dict[str, float]:
    """Return each output of the test step: a metric's result if it is one, else the mean."""
    found = {}
    for name in shares[0].outputs:
        # The output is the result of a metric if it is that on every worker; its own name first.
        sources = [
            source
            for source in sorted(shares[0].results, key=lambda result: result != name)
            if all(_is_same(name, source, share) for share in shares)
        ]
        if sources:
            found[name] = merged[sources[0]]
            continue
        weights = [share.n_records for share in shares]
        values = [share.outputs[name] for share in shares]
        found[name] = float(np.average(values, weights=weights if any(weights) else None))
    return found


def _is_same(name: str, source: str, share: _Share) -> bool:
    return source in share.results and bool(
        np.isclose(share.outputs[name], share.results[source], rtol=_SAME, atol=0, equal_nan=True)
    )


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are a single number, with parts of nested dicts by their names."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            numbers.update(_numbers(value))
        elif np.ndim(value) == 0:
            numbers[name] = float(value)
    return numbers
