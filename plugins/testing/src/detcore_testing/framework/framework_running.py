"""Clauses on how a framework is found, and on a run from start to end."""

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
    probe,
)
from detcore_testing.framework.framework_checks import (
    grows,
    not_finite,
    shown,
)
from detcore_testing.framework.framework_runs import FrameworkRuns
from detcore_testing.suite_clauses import clause

# Of detcore itself: a plugin that relates to them imports nothing more.
_FEW = 5  # fewer than there are more validations in the rearranged run
_NEEDED_BY_DETCORE = frozenset({"numpy", "yaml", "click", "pydantic", "pluggy"})


class FoundClauses(FrameworkBase):
    """How the plugin is found."""

    @clause(
        "framework-is-registered",
        "the framework is registered, and everything it names can be imported",
    )
    def test_framework_is_registered(self, runs: FrameworkRuns) -> None:
        """The doctor's view of the plugin."""
        found = probe(runs, "discover")
        assert self.framework in found["known"], (
            f"no framework {self.framework!r} among {found['known']}; {found['problems']}"
        )
        assert not found["problems"], f"the plugin has faults:{shown(found['problems'])}"

    @clause(
        "discovery-imports-no-framework",
        "finding plugins and calling their register hooks imports no framework",
    )
    def test_discovery_imports_no_framework(self, runs: FrameworkRuns) -> None:
        """Check ``sys.modules`` in a separate process."""
        found = probe(runs, "discover")
        assert self.framework in found["known"], f"no framework {self.framework!r}"
        modules = set(self.modules or found["requires"]) - _NEEDED_BY_DETCORE
        imported = sorted(modules & set(found["modules"]))
        assert not imported, f"imported though nothing trains yet: {', '.join(imported)}"


class RunningClauses(FrameworkBase):
    """A run that nothing disturbs."""

    @clause(
        "run-completes",
        "a trial trains the number of batches that its search requests and ends COMPLETED",
    )
    def test_run_completes(self, runs: FrameworkRuns) -> None:
        """Exit code, state, and the number of batches."""
        check_completed(self, runs.reference)
        assert max(runs.reference.checkpoints) == self.num_batches

    @clause(
        "training-metrics-are-reported",
        "each scheduling unit reports its own training metrics, with finite values",
    )
    def test_training_metrics_are_reported(self, runs: FrameworkRuns) -> None:
        """At the end of each unit; numbers that never change were not measured."""
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
        """At the due steps and nowhere else."""
        reports = runs.reference.validations
        assert sorted(reports) == self.validated_at(), f"validated at {sorted(reports)}"
        for steps, record in reports.items():
            assert self.metric in record.metrics, f"step {steps}: {sorted(record.metrics)}"
        _check_metrics(reports)
        counts = {record.n_records for record in reports.values()}
        assert len(counts) == 1, f"numbers of validated records differ: {counts}"
        assert counts != {0}, "a validation looked at no record"
        if self.num_validation_records is not None:
            assert counts == {self.num_validation_records}, f"it looked at {counts} records"

    @clause(
        "training-metrics-cover-their-batches",
        "a training report covers exactly the batches since the previous report",
    )
    def test_training_metrics_cover_their_batches(self, runs: FrameworkRuns) -> None:
        """The mean over the whole training is the same, however it is cut into reports."""
        if not self.mean_metric:
            pytest.skip("no training metric is a mean over batches (mean_metric)")
        found, expected = (
            _mean_of_all(run.training, self.mean_metric)
            for run in (runs.rearranged, runs.reference)
        )
        assert np.isclose(found, expected, rtol=TRAINING_TOLERANCE), (
            f"the mean {self.mean_metric} of all batches is {found}, cut otherwise {expected}"
        )
        told = _batch_faults(runs.reference.training, runs.rearranged.training, self.mean_metric)
        assert not told, shown(told)

    @clause(
        "run-leaves-nothing-behind",
        "a run leaves no processes and no files outside its checkpoints, no threads from saves, "
        "validations or scheduling units, and the working directory as it was",
    )
    def test_run_leaves_nothing_behind(self, runs: FrameworkRuns) -> None:
        """Processes by an inherited variable; files by their places; threads at each commit."""
        run = runs.reference
        assert not run.left, shown(run.left)
        for what in ("threads", "files"):
            counts = [commit[f"num_{what}"] for commit in run.commits]
            assert not grows(counts), f"there are more open {what} after each save: {counts}"
            more = runs.rearranged.commits[-1][f"num_{what}"] - counts[-1]
            assert more < _FEW, (
                f"with more validations, and training cut into shorter stretches, there are {more} "
                f"more open {what} in the end"
            )
        folders = {commit["folder"] for commit in run.commits}
        assert folders == {os.path.realpath(runs.model_dir)}, f"it works in {sorted(folders)}"


def _check_metrics(reports: Mapping[int, MetricRecord]) -> None:
    for steps, record in reports.items():
        assert record.metrics, f"step {steps}: no metrics"
    told = not_finite(reports)
    assert not told, shown(told)
    values = [repr(sorted(record.metrics.items())) for record in reports.values()]
    assert len(set(values)) > 1, f"the same metrics in all {len(values)} reports: {values[0]}"


def _mean_of_all(reports: Mapping[int, MetricRecord], metric: str) -> float:
    total, before = 0.0, 0
    for steps, record in sorted(reports.items()):
        assert metric in record.metrics, f"step {steps}: no {metric!r} in {sorted(record.metrics)}"
        total += float(record.metrics[metric]) * (steps - before)
        before = steps
    assert before, "there are no reports"
    return total / before


def _batch_faults(
    reports: Mapping[int, MetricRecord], single: Mapping[int, MetricRecord], metric: str
) -> list[str]:
    """Return how metrics of batches differ from reports that are of one batch each.

    A batch's is its own, or, as in Keras, the mean over the batches since the report before.
    """
    told, before = [], 0
    for steps, record in sorted(reports.items()):
        batches = record.batch_metrics
        if batches is not None and len(batches) != steps - before:
            told.append(f"step {steps}: metrics of {len(batches)} batches, not {steps - before}")
        elif batches is not None:
            alone: list[float] = []
            for step, values in enumerate(batches, before + 1):
                if step not in single or metric not in values:
                    break
                alone.append(float(single[step].metrics[metric]))
                expected = [alone[-1], float(np.mean(alone))]
                if not np.isclose(values[metric], expected, rtol=TRAINING_TOLERANCE).any():
                    told.append(f"batch {step}: {metric} is {values[metric]}, alone {alone[-1]}")
        before = steps
    return told
