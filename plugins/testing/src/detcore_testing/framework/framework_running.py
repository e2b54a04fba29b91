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

    @clause("it-is-found", "the framework is registered, and all that it names can be imported")
    def test_it_is_found(self, runs: FrameworkRuns) -> None:
        """The doctor's view of the plugin."""
        found = probe(runs, "discover")
        assert self.framework in found["known"], (
            f"no framework {self.framework!r} among {found['known']}; {found['problems']}"
        )
        assert not found["problems"], f"the plugin has faults:{shown(found['problems'])}"

    @clause(
        "discovery-imports-no-framework",
        "finding the plugins, and asking each what it registers, imports no framework",
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
        "a-run-completes", "a trial trains as many batches as its search wants, and is COMPLETED"
    )
    def test_a_run_completes(self, runs: FrameworkRuns) -> None:
        """Exit code, state, and the number of batches."""
        check_completed(self, runs.reference)
        assert max(runs.reference.checkpoints) == self.num_batches

    @clause(
        "training-metrics-are-reported",
        "each unit ends with a report of training metrics that are finite and its own",
    )
    def test_training_metrics_are_reported(self, runs: FrameworkRuns) -> None:
        """At the end of each unit; numbers that never change were not measured."""
        reports = runs.reference.training
        due = set(range(self.unit, self.num_batches + 1, self.unit)) | {self.num_batches}
        assert due <= set(reports), f"no report at the steps {sorted(due - set(reports))}"
        _check_metrics(reports)

    @clause(
        "validation-metrics-are-reported",
        "a validation follows each period and the last batch; its metrics are finite and its own",
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
        "a report is over all batches since the one before it, and over no others",
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
        "a-run-leaves-nothing-behind",
        "after a run there are no processes, no files outside of its checkpoints and no threads "
        "that a save, a validation or a stretch had started; it stays in its working directory",
    )
    def test_a_run_leaves_nothing_behind(self, runs: FrameworkRuns) -> None:
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
