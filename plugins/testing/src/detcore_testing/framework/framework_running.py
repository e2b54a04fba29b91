"""Clauses on framework discovery and on an uninterrupted run."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import pytest

from detcore.records import MetricRecord
from detcore_testing.framework.framework_base import (
    TRAINING_TOLERANCE,
    FrameworkBase,
    check_completed,
    run_probe,
)
from detcore_testing.framework.framework_checks import (
    always_grows,
    find_non_finite,
    format_faults,
)
from detcore_testing.framework.framework_runs import FrameworkRuns
from detcore_testing.suite_clauses import clause

_MAX_EXTRA_HANDLES = 5  # less than the number of additional validations in the rearranged run
# detcore imports these packages anyway.
_NEEDED_BY_DETCORE = frozenset({"numpy", "yaml", "click", "pydantic", "pluggy"})


class FoundClauses(FrameworkBase):
    """Clauses on plugin discovery."""

    @clause(
        "framework-is-registered",
        "the framework is registered, and everything it names can be imported",
    )
    def test_framework_is_registered(self, runs: FrameworkRuns) -> None:
        """Check the result of plugin diagnosis."""
        findings = run_probe(runs, "discover")
        assert self.framework in findings["frameworks"], (
            f"unknown framework {self.framework!r}; registered: {findings['frameworks']}. "
            f"Plugin problems: {findings['problems']}"
        )
        assert not findings["problems"], (
            f"the plugin has faults:{format_faults(findings['problems'])}"
        )

    @clause(
        "discovery-imports-no-framework",
        "finding plugins and calling their register hooks imports no framework",
    )
    def test_discovery_imports_no_framework(self, runs: FrameworkRuns) -> None:
        """Check ``sys.modules`` in a separate process."""
        findings = run_probe(runs, "discover")
        assert self.framework in findings["frameworks"], f"unknown framework {self.framework!r}"
        modules = set(self.modules or findings["requires"]) - _NEEDED_BY_DETCORE
        imported_modules = sorted(modules & set(findings["modules"]))
        assert not imported_modules, f"discovery imports {', '.join(imported_modules)}"


class RunningClauses(FrameworkBase):
    """Clauses on an uninterrupted run."""

    @clause(
        "run-completes",
        "a trial trains the number of batches that its search requests and ends COMPLETED",
    )
    def test_run_completes(self, runs: FrameworkRuns) -> None:
        """Check the exit code, the state and the number of batches."""
        check_completed(self, runs.reference)
        assert max(runs.reference.checkpoints) == self.num_batches

    @clause(
        "training-metrics-are-reported",
        "each scheduling unit reports its own training metrics, with finite values",
    )
    def test_training_metrics_are_reported(self, runs: FrameworkRuns) -> None:
        """Check the steps and values of reports. Metrics that never change were not measured."""
        reports = runs.reference.training
        due = set(range(self.unit, self.num_batches + 1, self.unit)) | {self.num_batches}
        assert due <= set(reports), f"no report at the steps {sorted(due - set(reports))}"
        _check_metrics(reports)

    @clause(
        "validation-metrics-are-reported",
        "each validation period and the last batch report their own validation metrics, with "
        "finite values",
    )
    def test_validation_metrics_are_reported(self, runs: FrameworkRuns) -> None:
        """Check the steps, metrics and record counts of validations."""
        reports = runs.reference.validations
        assert sorted(reports) == self.validated_at(), f"validated at {sorted(reports)}"
        for steps, record in reports.items():
            assert self.metric in record.metrics, f"step {steps}: {sorted(record.metrics)}"
        _check_metrics(reports)
        counts = {record.n_records for record in reports.values()}
        assert len(counts) == 1, f"validations used different numbers of records: {counts}"
        assert counts != {0}, "a validation used no records"
        if self.num_validation_records is not None:
            assert counts == {self.num_validation_records}, f"a validation used {counts} records"

    @clause(
        "training-metrics-cover-their-batches",
        "a training report covers exactly the batches since the previous report",
    )
    def test_training_metrics_cover_their_batches(self, runs: FrameworkRuns) -> None:
        """Compare the mean over all batches between two scheduling units."""
        if not self.mean_metric:
            pytest.skip("the suite defines no mean_metric")
        mean, expected = (
            _average_reports(run.training, self.mean_metric)
            for run in (runs.rearranged, runs.reference)
        )
        assert np.isclose(mean, expected, rtol=TRAINING_TOLERANCE), (
            f"the mean {self.mean_metric} of all batches is {mean}, but {expected} with another "
            "scheduling unit"
        )
        faults = _find_batch_faults(
            runs.reference.training, runs.rearranged.training, self.mean_metric
        )
        assert not faults, format_faults(faults)

    @clause(
        "run-leaves-nothing-behind",
        "a run leaves no processes and no files outside its checkpoints, no threads from saves, "
        "validations or scheduling units, and the working directory as it was",
    )
    def test_run_leaves_nothing_behind(self, runs: FrameworkRuns) -> None:
        """Check for processes by an inherited variable, for stray files, and for open handles."""
        run = runs.reference
        assert not run.leftovers, format_faults(run.leftovers)
        for kind in ("threads", "files"):
            counts = [commit[f"num_{kind}"] for commit in run.commits]
            assert not always_grows(counts), f"each save leaves more open {kind}: {counts}"
            num_extra = runs.rearranged.commits[-1][f"num_{kind}"] - counts[-1]
            assert num_extra < _MAX_EXTRA_HANDLES, (
                f"more validations and shorter scheduling units leave {num_extra} more open {kind}"
            )
        directories = {commit["folder"] for commit in run.commits}
        assert directories == {os.path.realpath(runs.model_dir)}, (
            f"the working directory changed: {sorted(directories)}"
        )


def _check_metrics(reports: Mapping[int, MetricRecord]) -> None:
    for steps, record in reports.items():
        assert record.metrics, f"step {steps}: no metrics"
    faults = find_non_finite(reports)
    assert not faults, format_faults(faults)
    values = [repr(sorted(record.metrics.items())) for record in reports.values()]
    assert len(set(values)) > 1, f"all {len(values)} reports have the same metrics: {values[0]}"


def _average_reports(reports: Mapping[int, MetricRecord], metric: str) -> float:
    total, before = 0.0, 0
    for steps, record in sorted(reports.items()):
        assert metric in record.metrics, f"step {steps}: no {metric!r} in {sorted(record.metrics)}"
        total += float(record.metrics[metric]) * (steps - before)
        before = steps
    assert before, "no reports"
    return total / before


def _find_batch_faults(
    reports: Mapping[int, MetricRecord], single: Mapping[int, MetricRecord], metric: str
) -> list[str]:
    """Compare batch metrics with reports that cover one batch each.

    A batch metric may belong to the batch alone, or, as in Keras, be the mean over the batches
    since the previous report.
    """
    faults, before = [], 0
    for steps, record in sorted(reports.items()):
        batches = record.batch_metrics
        if batches is not None and len(batches) != steps - before:
            faults.append(f"step {steps}: {len(batches)} batch metrics, not {steps - before}")
        elif batches is not None:
            batch_values: list[float] = []
            for step, values in enumerate(batches, before + 1):
                if step not in single or metric not in values:
                    break
                batch_values.append(float(single[step].metrics[metric]))
                expected = [batch_values[-1], float(np.mean(batch_values))]
                if not np.isclose(values[metric], expected, rtol=TRAINING_TOLERANCE).any():
                    faults.append(
                        f"batch {step}: {metric} is {values[metric]}, not {batch_values[-1]}"
                    )
        before = steps
    return faults
