"""Operations, and calls that come at the wrong time."""

from __future__ import annotations

from typing import Any

import pytest

from detcore.core import (
    Channel,
    DistributedContext,
    SearcherContext,
    SearcherMode,
    Unit,
)
from detcore.errors import ContextStateError, MetricError
from detcore.types import Length, TrialInfo, TrialSettings


def make(max_length: Any = None, *, rank: int = 0) -> SearcherContext:
    length = Length(max_length, Unit.BATCHES) if isinstance(max_length, int) else max_length
    settings = (
        TrialSettings()
        if length is None
        else TrialSettings(max_length=length, length_unit=length.unit)
    )
    info = TrialInfo(
        experiment_id=1, trial_id=1, run_id=1, trial_seed=0, hparams={}, config={},
        model_dir="/", trial_dir="/", settings=settings,
    )  # fmt: skip
    distributed = DistributedContext()
    distributed.rank = rank
    return SearcherContext(info, distributed=distributed, channel=Channel(None))


@pytest.mark.parametrize(
    ("max_length", "length", "unit"),
    [
        (Length(40, Unit.BATCHES), 40, Unit.BATCHES),
        (Length(7, Unit.RECORDS), 7, Unit.RECORDS),
        (Length(2, Unit.EPOCHS), 2, Unit.EPOCHS),
    ],
)
def test_operation_has_length_and_unit(max_length: Length, length: int, unit: Unit) -> None:
    searcher = make(max_length)
    assert searcher.get_configured_units() is unit
    operations = list_completing(searcher)
    assert [(op.length, op.unit, op.is_completed) for op in operations] == [(length, unit, True)]


def test_operations_require_a_length() -> None:
    searcher = make()
    with pytest.raises(
        ContextStateError, match=r"training length is unknown.*\n.*max_length=\{\"batches\""
    ):
        searcher.operations()


def list_completing(searcher: SearcherContext) -> list[Any]:
    operations = []
    for operation in searcher.operations():
        operation.report_progress(0.5)
        operation.report_completed(0.25)
        operation.report_progress(operation.length)
        operations.append(operation)
    return operations


def test_next_operation_requires_completed_operation() -> None:
    operations = make(1).operations()
    next(operations)
    with pytest.raises(ContextStateError, match=r"length 1 was not completed.*\n.*\n.*report_comp"):
        next(operations)


def test_operation_completes_once() -> None:
    operation = next(make(9).operations())
    operation.report_completed(1)
    with pytest.raises(ContextStateError, match="length 9 was completed twice"):
        operation.report_completed(1)
    with pytest.raises(ContextStateError, match="progress 3 was reported after"):
        operation.report_progress(3)


@pytest.mark.parametrize("progress", [-1, float("nan"), float("inf")])
def test_invalid_progress_is_refused(progress: float) -> None:
    with pytest.raises(MetricError, match="progress of"):
        next(make(1).operations()).report_progress(progress)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (float("nan"), "the searcher's metric is NaN"),
        (None, "'searcher_metric' is None"),
        ("low", "'searcher_metric' is a str, not a single number"),
    ],
)
def test_searcher_metric_must_be_a_number(metric: Any, message: str) -> None:
    operation = next(make(1).operations())
    with pytest.raises(MetricError, match=message):
        operation.report_completed(metric)
    assert not operation.is_completed
    operation.report_completed(float("inf"))


def test_only_chief_reports_operations() -> None:
    searcher = make(1, rank=1)
    with pytest.raises(ContextStateError, match="rank 1 in ChiefOnly mode"):
        searcher.operations(SearcherMode.ChiefOnly)
    operation = next(searcher.operations())
    with pytest.raises(ContextStateError, match=r"report_progress\(\) was called on rank 1"):
        operation.report_progress(1)
    with pytest.raises(ContextStateError, match=r"report_completed\(\) was called on rank 1"):
        operation.report_completed(1)


def test_end_of_operations_can_be_acknowledged() -> None:
    searcher = make(1)
    for operation in searcher.operations(auto_ack=False):
        operation.report_completed(0)
    searcher.acknowledge_out_of_ops()
