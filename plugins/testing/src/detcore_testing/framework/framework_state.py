"""Clauses on checkpoints, and on what must come out bit for bit."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import re

import numpy as np
import pytest

from detcore.checkpoint import verify_checkpoint
from detcore.records import MetricRecord
from detcore.storage import LocalStorage
from detcore_testing.framework.framework_base import (
    TRAINING_TOLERANCE,
    FrameworkBase,
    check_completed,
    probe,
    used,
)
from detcore_testing.framework.framework_checks import (
    differences,
    find_pickles,
    metric_differences,
    shown,
)
from detcore_testing.framework.framework_runs import (
    CHANGES,
    CHECKPOINT_PERIOD,
    FrameworkRun,
    FrameworkRuns,
)
from detcore_testing.suite_clauses import clause

_EXIT_PREEMPTED = 75
_OWN_FILES = {"manifest.json", "metadata.json", "clock.json", "trial.json"}


class CheckpointClauses(FrameworkBase):
    """Clauses on the contents of checkpoints, and on the code that reads them."""

    @clause(
        "checkpoints-are-complete",
        "each checkpoint period and the last batch have a complete checkpoint",
    )
    def test_checkpoints_are_complete(self, runs: FrameworkRuns) -> None:
        """Files of the framework are in it, and all files are as the manifest says."""
        run = runs.reference
        assert sorted(run.checkpoints) == self.saved_at(), f"saved at {sorted(run.checkpoints)}"
        for folder in run.checkpoints.values():
            faults = verify_checkpoint(LocalStorage(folder.parent), folder.name)
            assert not faults, f"{folder.name}: {faults}"
            names = {
                path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
            }
            own = {name for name in names - _OWN_FILES if not name.startswith("code/")}
            assert own, f"the framework wrote no file into {folder.name}"

    @clause("checkpoints-contain-no-pickle", "no file in a checkpoint contains a pickle")
    def test_checkpoints_contain_no_pickle(self, runs: FrameworkRuns) -> None:
        """Loading a pickle runs whatever code it names."""
        pickles = find_pickles(runs.reference.last_checkpoint)
        assert not pickles, f"pickles, or archives of pickles: {', '.join(pickles)}"

    @clause(
        "checkpoints-contain-the-state",
        "a checkpoint contains the state of its batch, with finite values",
    )
    def test_checkpoints_contain_the_state(self, runs: FrameworkRuns) -> None:
        """By the raw accessor: the first and the last checkpoint differ."""
        run = runs.reference
        for steps, folder in run.checkpoints.items():
            self.check_counter(folder, steps)
        ends = (CHECKPOINT_PERIOD, self.num_batches)
        first, last = (self.read_state(run.checkpoints[steps]) for steps in ends)
        assert last, "read_state found no array in the checkpoint"
        for name, array in last.items():
            if np.issubdtype(np.asarray(array).dtype, np.floating):
                assert np.isfinite(array).all(), f"{name} is not finite"
        assert differences(last, first), (
            f"the states of batch {min(run.checkpoints)} and of the last batch are the same"
        )

    @clause("save-after-restore-is-identical", "saving after a restore writes the same state")
    def test_save_after_restore_is_identical(self, runs: FrameworkRuns) -> None:
        """Validation in between included; a second save writes the same as the first."""
        used(self, runs)
        for way in ("save", "again"):
            self.check_same(runs.folder / "use" / way, runs.reference.last_checkpoint)

    @clause(
        "restore-reads-each-file",
        "restore reads every file that save writes, except the files listed in unread_files",
    )
    def test_restore_reads_each_file(self, runs: FrameworkRuns) -> None:
        """State that is written and never read is lost when a trial resumes."""
        unread = [
            name
            for name in used(self, runs)["unread"]
            if not any(fnmatch.fnmatch(name, pattern) for pattern in self.unread_files)
        ]
        assert not unread, (
            f"save writes files that restore never reads: {', '.join(unread)}.\n"
            "Restore the state in them, or leave them out. Name files that only other code reads, "
            "such as a drawing of the model, in unread_files."
        )

    @clause(
        "restore-rejects-damage",
        "restore rejects a checkpoint with missing or truncated files instead of restoring part of "
        "it",
    )
    def test_restore_rejects_damage(self, runs: FrameworkRuns) -> None:
        """An empty folder, and one whose largest file is empty."""
        accepted = [what for what, error in used(self, runs)["refusals"].items() if not error]
        assert not accepted, f"restored without a word: {', '.join(accepted)}"

    @clause(
        "tensors-match-their-files",
        "each tensor in tensors() is stored in the file that tensors() names",
    )
    def test_tensors_match_their_files(self, runs: FrameworkRuns) -> None:
        """Where the controller has the method; the manifest of the last checkpoint shows it."""
        found = used(self, runs)
        missing = set(found.get("tensors", ())) - set(found["files"])
        assert not missing, f"files that are not in the checkpoint: {sorted(missing)}"

    @clause(
        "state-tensors-match-the-state",
        "state_tensors() names values that only training or a restore changes",
    )
    def test_state_tensors_match_the_state(self, runs: FrameworkRuns) -> None:
        """Read twice, after validations and saves, and after restoring this and another state."""
        found = dict(used(self, runs)["states"])
        if not found:
            pytest.skip("the controller has no state_tensors(), so detcore diverge skips it")
        names = found["at first"]
        wrong = [name for name in names if not re.match(r"[a-z][a-z0-9-]*\..", name)]
        assert not wrong, f"names without a group such as 'model.': {shown(wrong)}"
        objects = [name for name, what in names.items() if what.endswith(" objects")]
        assert not objects, f"arrays of Python objects: {shown(objects)}"
        other = found.pop("first")
        for when, state in found.items():
            told = [name for name in {**names, **state} if names.get(name) != state.get(name)]
            assert not told, f"{when}, these differ: {shown(told)}"
        changed = [n for n in names if n.startswith("model.") and other.get(n) != names[n]]
        assert changed, "no tensor in the group 'model.' differs between two checkpoints"

    @clause(
        "validation-is-repeatable",
        "a restored trial always reports the validation metrics that it had when the checkpoint "
        "was saved",
    )
    def test_validation_is_repeatable(self, runs: FrameworkRuns) -> None:
        """Validate twice in a row, and compare with the metrics reported in the run."""
        first, second = used(self, runs)["validations"]
        assert first == second, f"{first} and then {second}"
        recorded = runs.reference.validations[self.num_batches].metrics
        assert first == dict(recorded), f"{first} instead of {dict(recorded)}"

    @clause(
        "validation-uses-validation-data",
        "validation metrics are those of the model on the validation data",
    )
    def test_validation_uses_validation_data(self, runs: FrameworkRuns) -> None:
        """Compare with the metrics that `compute_validation` returns for the same batch."""
        run, compared = runs.reference, 0
        for steps in sorted(run.validations.keys() & run.checkpoints.keys()):
            computed = self.compute_validation(run.checkpoints[steps])
            if computed is None:
                pytest.skip("the suite computes no validation metric itself (compute_validation)")
            reported = run.validations[steps].metrics
            for name, expected in computed.items():
                assert name in reported, f"{name!r} is not among the metrics {sorted(reported)}"
                compared += 1
                assert np.isclose(
                    reported[name],
                    expected,
                    rtol=self.validation_tolerance,
                    atol=self.validation_tolerance,
                ), f"step {steps}: {name} is {reported[name]}; of the validation data {expected}"
        assert compared, "compute_validation returned no metric"

    @clause(
        "batches-per-epoch-is-reported",
        "batches_per_epoch is the number of batches in one pass over the data, or None",
    )
    def test_batches_per_epoch_is_reported(self, runs: FrameworkRuns) -> None:
        """The number of batches per epoch converts lengths in epochs to batches."""
        found = used(self, runs)["batches_per_epoch"]
        assert found is None or (isinstance(found, int) and found > 0), f"it is {found!r}"
        if self.batches_per_epoch is not None:
            assert found == self.batches_per_epoch, f"{found}, not {self.batches_per_epoch}"

    @clause(
        "load-checkpoint-returns-the-model",
        "Checkpoint.load returns the model in the checkpoint",
        capability="load-checkpoint",
    )
    def test_load_checkpoint_returns_the_model(self, runs: FrameworkRuns) -> None:
        """Through the client, in a separate process: two checkpoints are two models."""
        checkpoints = runs.reference.checkpoints
        first, last = checkpoints[min(checkpoints)], runs.reference.last_checkpoint
        uuids, folder = [last.name, first.name], runs.folder / "loaded"
        found = probe(runs, "load", uuids=uuids, folder=str(folder))
        assert not found["is_none"], "it returned None"
        one, other = found["digests"]
        assert one is None or one != other, (
            f"the checkpoints of batch {min(checkpoints)} and of the last batch load as the same "
            f"{found['type']}"
        )

    @clause(
        "start-from-loads-weights",
        "a trial that starts from another trial's checkpoint starts with that model, at batch 0",
        capability="start-from",
    )
    def test_start_from_loads_weights(self, runs: FrameworkRuns) -> None:
        """By its validation before the first batch, and its own `batch_counter`."""
        run = runs.continued
        check_completed(self, run, self.unit)
        first = run.validations[0].metrics
        recorded = runs.reference.validations[self.num_batches].metrics
        assert dict(first) == dict(recorded), f"{dict(first)} instead of {dict(recorded)}"
        assert max(run.checkpoints) == self.unit, f"checkpoints at {sorted(run.checkpoints)}"
        self.check_counter(run.last_checkpoint, self.unit)

    @clause(
        "start-from-keeps-hyperparameters",
        "a trial that starts from another trial's checkpoint trains with its own hyperparameters",
        capability="start-from",
    )
    def test_start_from_keeps_hyperparameters(self, runs: FrameworkRuns) -> None:
        """Two trials start from one checkpoint and differ in `changed_hyperparameters` alone."""
        if not self.changed_hyperparameters:
            pytest.skip("the suite names no changed_hyperparameters")
        run, other = runs.continue_with(self.changed_hyperparameters), runs.continued
        check_completed(self, run, self.unit)
        first, last = (run.validations[steps].metrics for steps in (0, self.unit))
        assert dict(first) == dict(other.validations[0].metrics), "it begins with another model"
        assert last[self.metric] != other.validations[self.unit].metrics[self.metric], (
            f"with {dict(self.changed_hyperparameters)} and without, {self.metric} is "
            f"{last[self.metric]} after {self.unit} batches"
        )


class ExactClauses(FrameworkBase):
    """Clauses on events and settings that must not change training."""

    def _check_resumed_at(self, runs: FrameworkRuns, run: FrameworkRun, steps: int) -> None:
        pair = run.checkpoints[steps], runs.reference.checkpoints[steps]
        self.check_resumed(runs, self.differences(*pair), f"at batch {steps}")

    @clause(
        "exact-resume-after-kill",
        "a trial killed during a save resumes bit for bit from the previous checkpoint",
    )
    def test_exact_resume_after_kill(self, runs: FrameworkRuns) -> None:
        """Killed in the middle of a save; compared with the uninterrupted run."""
        self.skip_where_inexact(runs)
        run = runs.interrupted
        assert run.finished[0].code == 1, f"it was not killed: {run.finished[0].output}"
        steps = 2 * CHECKPOINT_PERIOD
        assert steps in run.checkpoints, (
            f"after the kill it did not come to batch {steps}:\n{run.output}"
        )
        self._check_resumed_at(runs, run, steps)

    @clause(
        "exact-resume-after-sigterm",
        f"after SIGTERM a trial saves a checkpoint, exits with code {_EXIT_PREEMPTED} and resumes "
        f"bit for bit",
    )
    def test_exact_resume_after_sigterm(self, runs: FrameworkRuns) -> None:
        """Where the signal comes is up to the machine; where it ends is not."""
        self.skip_where_inexact(runs)
        run = runs.interrupted
        assert len(run.finished) == 3
        code = run.finished[1].code
        assert code == _EXIT_PREEMPTED, f"exit code {code} after SIGTERM:\n{run.output}"
        check_completed(self, run)
        self._check_resumed_at(runs, run, self.num_batches)

    @clause(
        "exact-resume-in-later-epoch",
        "a trial killed near its end resumes bit for bit from the previous checkpoint",
    )
    def test_exact_resume_in_later_epoch(self, runs: FrameworkRuns) -> None:
        """The order of the records of a first epoch may be right by chance."""
        self.skip_where_inexact(runs)
        if "several-workers" not in self.declined:
            pytest.skip("the clause two-workers-resume-exactly shows it")
        run = runs.late
        assert run.finished[0].code == 1, f"it was not killed: {run.finished[0].output}"
        check_completed(self, run)
        self._check_resumed_at(runs, run, self.num_batches)

    @clause(
        "resume-continues-at-checkpoint",
        "a resumed trial continues at the batch and data position of its checkpoint and reports "
        "the same metrics, within resume_tolerance where resume is not exact",
    )
    def test_resume_continues_at_checkpoint(self, runs: FrameworkRuns) -> None:
        """The steps are exact; other records, or a model that was lost, give other metrics."""
        codes = [finished.code for finished in runs.interrupted.finished]
        assert codes[:2] == [1, _EXIT_PREEMPTED], f"exit codes {codes}:\n{runs.interrupted.output}"
        if not self.inexact_resume(runs):  # the clauses on exact resume look at the other runs
            self._check_metrics(runs, runs.interrupted, runs.reference, 0.0)
            return
        self._check_metrics(runs, runs.interrupted, runs.reference, self.resume_tolerance)
        self._check_metrics(runs, runs.late, runs.reference, self.resume_tolerance)
        if "several-workers" not in self.declined:
            self._check_metrics(runs, runs.two_workers, runs.one_worker, self.resume_tolerance)
            assert not runs.two_workers.processes_left, shown(runs.two_workers.processes_left)

    def _check_metrics(
        self, runs: FrameworkRuns, run: FrameworkRun, reference: FrameworkRun, near: float
    ) -> None:
        """Check that a resumed run reports where the reference does, and nearly the same."""
        check_completed(self, run)
        for steps, folder in run.checkpoints.items():
            self.check_counter(folder, steps)
        assert sorted(run.validations) == sorted(reference.validations)
        told = metric_differences(run.validations, reference.validations, relative=near)
        training = _trained_alike(run, reference)  # other means may be cut otherwise
        # Means around zero are rounded, too; other data must not pass where a resume is inexact.
        told += metric_differences(
            training,
            reference.training,
            relative=max(near, TRAINING_TOLERANCE),
            absolute=0.0 if near else TRAINING_TOLERANCE,
        )
        self.check_resumed(runs, told, "in its metrics")

    @clause(
        "schedule-does-not-change-training",
        "training is the same bit for bit with other scheduling units, with more validations "
        "(including before the first batch) and with fewer checkpoints",
    )
    def test_schedule_does_not_change_training(self, runs: FrameworkRuns) -> None:
        """All of it changed in one run; if that differs, a run for each change names the cause."""
        expected = runs.reference.last_checkpoint
        with contextlib.suppress(AssertionError):
            check_completed(self, runs.rearranged)
            self.check_same(runs.rearranged.last_checkpoint, expected)
            return
        for what in CHANGES:
            run = runs.changed(what)
            check_completed(self, run)
            self.check_same(run.last_checkpoint, expected, f"last batch, with {what},")
        self.check_same(runs.rearranged.last_checkpoint, expected)

    @clause("seed-changes-results", "another seed leads to another training state")
    def test_seed_changes_results(self, runs: FrameworkRuns) -> None:
        """The whole training state of two runs; the same seed is a part of other clauses."""
        steps = 2 * CHECKPOINT_PERIOD
        assert steps in runs.stopped.checkpoints, f"no checkpoint there:\n{runs.stopped.output}"
        pair = runs.stopped.checkpoints[steps], runs.reference.checkpoints[steps]
        assert self.differences(*pair), "another seed led to the same state"

    @clause(
        "snapshot-equals-save",
        "a checkpoint written while training continues equals the checkpoint that save would write",
        capability="snapshot",
    )
    def test_snapshot_equals_save(self, runs: FrameworkRuns) -> None:
        """Checkpoints of the run that saves behind training, and of the one that waits."""
        assert used(self, runs)["snapshot"], (
            "the controller has no method 'snapshot'.\nDecline 'snapshot' if that is intended."
        )
        self.check_same(runs.folder / "use" / "snapshot", runs.reference.last_checkpoint)
        is_exact = not self.inexact_resume(runs)
        for steps in self.saved_at():
            was_resumed = steps > CHECKPOINT_PERIOD
            if steps in runs.interrupted.checkpoints and (is_exact or not was_resumed):
                pair = runs.interrupted.checkpoints[steps], runs.reference.checkpoints[steps]
                self.check_same(*pair, f"batch {steps}")


def _trained_alike(run: FrameworkRun, reference: FrameworkRun) -> dict[int, MetricRecord]:
    """Return the reports of training metrics whose stretches began alike in both runs."""
    ends, others = sorted(run.training), sorted(reference.training)
    same = {*itertools.pairwise([0, *ends])} & {*itertools.pairwise([0, *others])}
    return {end: run.training[end] for _, end in same}
