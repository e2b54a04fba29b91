"""Clauses on checkpoints and on exact resume."""

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
    run_probe,
    use_controller,
)
from detcore_testing.framework.framework_checks import (
    compare_metrics,
    compare_states,
    find_pickles,
    format_faults,
)
from detcore_testing.framework.framework_runs import (
    CHANGES,
    CHECKPOINT_PERIOD,
    FrameworkRun,
    FrameworkRuns,
)
from detcore_testing.suite_clauses import clause

_EXIT_PREEMPTED = 75
_OWN_FILES = {"manifest.json", "metadata.json", "clock.json", "trial.json", "audit.json"}


class CheckpointClauses(FrameworkBase):
    """Clauses on the contents of checkpoints, and on the code that reads them."""

    @clause(
        "checkpoints-are-complete",
        "each checkpoint period and the last batch have a complete checkpoint",
    )
    def test_checkpoints_are_complete(self, runs: FrameworkRuns) -> None:
        """Check for framework files in each checkpoint, and verify all files with the manifest."""
        run = runs.reference
        assert sorted(run.checkpoints) == self.saved_at(), f"saved at {sorted(run.checkpoints)}"
        for folder in run.checkpoints.values():
            faults = verify_checkpoint(LocalStorage(folder.parent), folder.name)
            assert not faults, f"{folder.name}: {faults}"
            names = {
                path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
            }
            names = {name for name in names - _OWN_FILES if not name.startswith("code/")}
            assert names, f"the framework wrote no file into {folder.name}"

    @clause("checkpoints-contain-no-pickle", "no file in a checkpoint contains a pickle")
    def test_checkpoints_contain_no_pickle(self, runs: FrameworkRuns) -> None:
        """Search all files for pickles, because loading a pickle can run any code."""
        pickles = find_pickles(runs.reference.last_checkpoint)
        assert not pickles, f"pickles, or archives of pickles: {', '.join(pickles)}"

    @clause(
        "checkpoints-contain-the-state",
        "a checkpoint contains the state of its batch, with finite values",
    )
    def test_checkpoints_contain_the_state(self, runs: FrameworkRuns) -> None:
        """Read the first and last checkpoints with the raw accessor. They must differ."""
        run = runs.reference
        for steps, folder in run.checkpoints.items():
            self.check_counter(folder, steps)
        ends = (CHECKPOINT_PERIOD, self.num_batches)
        first, last = (self.read_state(run.checkpoints[steps]) for steps in ends)
        assert last, "read_state returned no array for the checkpoint"
        for name, array in last.items():
            if np.issubdtype(np.asarray(array).dtype, np.floating):
                assert np.isfinite(array).all(), f"{name} is not finite"
        assert compare_states(last, first), (
            f"batch {min(run.checkpoints)} and the last batch have the same state"
        )

    @clause("save-after-restore-is-identical", "saving after a restore writes the same state")
    def test_save_after_restore_is_identical(self, runs: FrameworkRuns) -> None:
        """Save twice, with a validation in between."""
        use_controller(self, runs)
        for name in ("save", "again"):
            self.check_same(runs.folder / "use" / name, runs.reference.last_checkpoint)

    @clause(
        "restore-reads-each-file",
        "restore reads every file that save writes, except the files listed in unread_files",
    )
    def test_restore_reads_each_file(self, runs: FrameworkRuns) -> None:
        """Find files that restore does not read. Their state is lost when a trial resumes."""
        unread = [
            name
            for name in use_controller(self, runs)["unread"]
            if not any(fnmatch.fnmatch(name, pattern) for pattern in self.unread_files)
        ]
        assert not unread, (
            f"save writes files that restore never reads: {', '.join(unread)}.\n"
            "Restore their state or do not write them. List files that only other code reads, such "
            "as a plot of the model, in unread_files."
        )

    @clause(
        "restore-rejects-damage",
        "restore rejects a checkpoint with missing or truncated files instead of restoring part of "
        "it",
    )
    def test_restore_rejects_damage(self, runs: FrameworkRuns) -> None:
        """Restore an empty directory, and a checkpoint whose largest file is empty."""
        errors = use_controller(self, runs)["refusals"]
        accepted = [damage for damage, error in errors.items() if not error]
        assert not accepted, f"restored without an error: {', '.join(accepted)}"

    @clause(
        "tensors-match-their-files",
        "each tensor in tensors() is stored in the file that tensors() names",
    )
    def test_tensors_match_their_files(self, runs: FrameworkRuns) -> None:
        """Compare the files that tensors() names, if any, with the saved files."""
        findings = use_controller(self, runs)
        missing = set(findings.get("tensors", ())) - set(findings["files"])
        assert not missing, f"files that are not in the checkpoint: {sorted(missing)}"

    @clause(
        "state-tensors-match-the-state",
        "state_tensors() names values that only training or a restore changes",
    )
    def test_state_tensors_match_the_state(self, runs: FrameworkRuns) -> None:
        """Read the state twice, after validations and saves, and after two restores."""
        states = dict(use_controller(self, runs)["states"])
        if not states:
            pytest.skip("the controller has no state_tensors(), so detcore diverge skips it")
        digests = states["at first"]
        bad_names = [name for name in digests if not re.match(r"[a-z][a-z0-9-]*\..", name)]
        assert not bad_names, f"names without a group such as 'model.': {format_faults(bad_names)}"
        objects = [name for name, digest in digests.items() if digest.endswith(" objects")]
        assert not objects, f"arrays of Python objects: {format_faults(objects)}"
        first = states.pop("first")
        for when, state in states.items():
            faults = [key for key in {**digests, **state} if digests.get(key) != state.get(key)]
            assert not faults, f"{when}, these tensors differ: {format_faults(faults)}"
        model_names = [name for name in digests if name.startswith("model.")]
        assert any(first.get(name) != digests[name] for name in model_names), (
            "no tensor in the group 'model.' differs between two checkpoints"
        )

    @clause(
        "validation-is-repeatable",
        "a restored trial always reports the validation metrics that it had when the checkpoint "
        "was saved",
    )
    def test_validation_is_repeatable(self, runs: FrameworkRuns) -> None:
        """Validate twice and compare with the metrics reported in the run."""
        first, second = use_controller(self, runs)["validations"]
        assert first == second, f"{first}, then {second}"
        recorded = runs.reference.validations[self.num_batches].metrics
        assert first == dict(recorded), f"{first} instead of {dict(recorded)}"

    @clause(
        "validation-uses-validation-data",
        "validation metrics are those of the model on the validation data",
    )
    def test_validation_uses_validation_data(self, runs: FrameworkRuns) -> None:
        """Compare with the metrics that `compute_validation` returns for the same batch."""
        run, num_compared = runs.reference, 0
        for steps in sorted(run.validations.keys() & run.checkpoints.keys()):
            computed = self.compute_validation(run.checkpoints[steps])
            if computed is None:
                pytest.skip("the suite does not define compute_validation")
            reported = run.validations[steps].metrics
            for name, expected in computed.items():
                assert name in reported, f"{name!r} is not among the metrics {sorted(reported)}"
                num_compared += 1
                assert np.isclose(
                    reported[name],
                    expected,
                    rtol=self.validation_tolerance,
                    atol=self.validation_tolerance,
                ), f"step {steps}: {name} is {reported[name]}, not {expected} (validation data)"
        assert num_compared, "compute_validation returned no metric"

    @clause(
        "batches-per-epoch-is-reported",
        "batches_per_epoch is the number of batches in one pass over the data, or None",
    )
    def test_batches_per_epoch_is_reported(self, runs: FrameworkRuns) -> None:
        """Check the number that converts lengths in epochs to batches."""
        count = use_controller(self, runs)["batches_per_epoch"]
        is_valid = count is None or (isinstance(count, int) and count > 0)
        assert is_valid, f"batches_per_epoch is {count!r}"
        if self.batches_per_epoch is not None:
            assert count == self.batches_per_epoch, f"{count}, not {self.batches_per_epoch}"

    @clause(
        "load-checkpoint-returns-the-model",
        "Checkpoint.load returns the model in the checkpoint",
        capability="load-checkpoint",
    )
    def test_load_checkpoint_returns_the_model(self, runs: FrameworkRuns) -> None:
        """Load two checkpoints with the client in a separate process. The models must differ."""
        checkpoints = runs.reference.checkpoints
        first, last = checkpoints[min(checkpoints)], runs.reference.last_checkpoint
        uuids, folder = [last.name, first.name], runs.folder / "loaded"
        findings = run_probe(runs, "load", uuids=uuids, folder=str(folder))
        assert not findings["is_none"], "Checkpoint.load returned None"
        last_digest, first_digest = findings["digests"]
        assert last_digest is None or last_digest != first_digest, (
            f"the checkpoints of batch {min(checkpoints)} and the last batch load as the same "
            f"{findings['type']}"
        )

    @clause(
        "start-from-loads-weights",
        "a trial that starts from another trial's checkpoint starts with that model, at batch 0",
        capability="start-from",
    )
    def test_start_from_loads_weights(self, runs: FrameworkRuns) -> None:
        """Check the validation before the first batch and the `batch_counter`."""
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
        """Compare two trials that differ only in `changed_hyperparameters`."""
        if not self.changed_hyperparameters:
            pytest.skip("the suite defines no changed_hyperparameters")
        run, other = runs.continue_with(self.changed_hyperparameters), runs.continued
        check_completed(self, run, self.unit)
        first, last = (run.validations[steps].metrics for steps in (0, self.unit))
        assert dict(first) == dict(other.validations[0].metrics), (
            "the trials start with other models"
        )
        assert last[self.metric] != other.validations[self.unit].metrics[self.metric], (
            f"with and without {dict(self.changed_hyperparameters)}, {self.metric} is "
            f"{last[self.metric]} after {self.unit} batches"
        )


class ExactClauses(FrameworkBase):
    """Clauses on events and settings that must not change training."""

    def _check_resumed_at(self, runs: FrameworkRuns, run: FrameworkRun, steps: int) -> None:
        pair = run.checkpoints[steps], runs.reference.checkpoints[steps]
        self.check_resumed(runs, self.compare_states(*pair), f"at batch {steps}")

    @clause(
        "exact-resume-after-kill",
        "a trial killed during a save resumes bit for bit from the previous checkpoint",
    )
    def test_exact_resume_after_kill(self, runs: FrameworkRuns) -> None:
        """Kill the trial in the middle of a save, and compare with the uninterrupted run."""
        self.skip_where_inexact(runs)
        run = runs.interrupted
        assert run.finished[0].code == 1, f"the trial was not killed: {run.finished[0].output}"
        steps = 2 * CHECKPOINT_PERIOD
        assert steps in run.checkpoints, (
            f"the resumed trial did not reach batch {steps}:\n{run.output}"
        )
        self._check_resumed_at(runs, run, steps)

    @clause(
        "exact-resume-after-sigterm",
        f"after SIGTERM a trial saves a checkpoint, exits with code {_EXIT_PREEMPTED} and resumes "
        f"bit for bit",
    )
    def test_exact_resume_after_sigterm(self, runs: FrameworkRuns) -> None:
        """Compare the final state, because the batch of the signal depends on timing."""
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
        """Resume in a later epoch, because the first epoch may have the right order by chance."""
        self.skip_where_inexact(runs)
        if "several-workers" not in self.declined:
            pytest.skip("the clause two-workers-resume-exactly covers this clause")
        run = runs.late
        assert run.finished[0].code == 1, f"the trial was not killed: {run.finished[0].output}"
        check_completed(self, run)
        self._check_resumed_at(runs, run, self.num_batches)

    @clause(
        "resume-continues-at-checkpoint",
        "a resumed trial continues at the batch and data position of its checkpoint and reports "
        "the same metrics, within resume_tolerance where resume is not exact",
    )
    def test_resume_continues_at_checkpoint(self, runs: FrameworkRuns) -> None:
        """Compare steps and metrics, which reveal other records or a lost model."""
        codes = [finished.code for finished in runs.interrupted.finished]
        assert codes[:2] == [1, _EXIT_PREEMPTED], f"exit codes {codes}:\n{runs.interrupted.output}"
        if not self.inexact_resume(runs):  # the clauses on exact resume check the other runs
            self._check_metrics(runs, runs.interrupted, runs.reference, 0.0)
            return
        self._check_metrics(runs, runs.interrupted, runs.reference, self.resume_tolerance)
        self._check_metrics(runs, runs.late, runs.reference, self.resume_tolerance)
        if "several-workers" not in self.declined:
            self._check_metrics(runs, runs.two_workers, runs.one_worker, self.resume_tolerance)
            assert not runs.two_workers.leftover_processes, format_faults(
                runs.two_workers.leftover_processes
            )

    def _check_metrics(
        self, runs: FrameworkRuns, run: FrameworkRun, reference: FrameworkRun, tolerance: float
    ) -> None:
        """Check that a resumed run reports the reference's steps, and metrics within tolerance."""
        check_completed(self, run)
        for steps, folder in run.checkpoints.items():
            self.check_counter(folder, steps)
        assert sorted(run.validations) == sorted(reference.validations)
        faults = compare_metrics(run.validations, reference.validations, relative=tolerance)
        training = _select_same_spans(run, reference)
        # Means near zero also round differently. An inexact resume must not hide other data.
        faults += compare_metrics(
            training,
            reference.training,
            relative=max(tolerance, TRAINING_TOLERANCE),
            absolute=0.0 if tolerance else TRAINING_TOLERANCE,
        )
        self.check_resumed(runs, faults, "in its metrics")

    @clause(
        "schedule-does-not-change-training",
        "training is the same bit for bit with other scheduling units, with more validations "
        "(including before the first batch) and with fewer checkpoints",
    )
    def test_schedule_does_not_change_training(self, runs: FrameworkRuns) -> None:
        """Make all changes in one run. If it differs, run each change alone to find the cause."""
        expected = runs.reference.last_checkpoint
        with contextlib.suppress(AssertionError):
            check_completed(self, runs.rearranged)
            self.check_same(runs.rearranged.last_checkpoint, expected)
            return
        for change in CHANGES:
            run = runs.run_with_change(change)
            check_completed(self, run)
            self.check_same(run.last_checkpoint, expected, f"last batch, with {change},")
        self.check_same(runs.rearranged.last_checkpoint, expected)

    @clause("seed-changes-results", "another seed leads to another training state")
    def test_seed_changes_results(self, runs: FrameworkRuns) -> None:
        """Compare the training states of two runs with different seeds."""
        steps = 2 * CHECKPOINT_PERIOD
        assert steps in runs.stopped.checkpoints, (
            f"no checkpoint at batch {steps}:\n{runs.stopped.output}"
        )
        pair = runs.stopped.checkpoints[steps], runs.reference.checkpoints[steps]
        assert self.compare_states(*pair), "another seed led to the same state"

    @clause(
        "snapshot-equals-save",
        "a checkpoint written while training continues equals the checkpoint that save would write",
        capability="snapshot",
    )
    def test_snapshot_equals_save(self, runs: FrameworkRuns) -> None:
        """Compare the checkpoints of an asynchronous run and a synchronous run."""
        assert use_controller(self, runs)["snapshot"], (
            "the controller has no method 'snapshot'.\nIf this is intended, decline 'snapshot'."
        )
        self.check_same(runs.folder / "use" / "snapshot", runs.reference.last_checkpoint)
        is_exact = not self.inexact_resume(runs)
        for steps in self.saved_at():
            was_resumed = steps > CHECKPOINT_PERIOD
            if steps in runs.interrupted.checkpoints and (is_exact or not was_resumed):
                pair = runs.interrupted.checkpoints[steps], runs.reference.checkpoints[steps]
                self.check_same(*pair, f"batch {steps}")


def _select_same_spans(run: FrameworkRun, reference: FrameworkRun) -> dict[int, MetricRecord]:
    """Return the training reports that cover the same batches in both runs."""
    spans, reference_spans = (
        {*itertools.pairwise([0, *sorted(reports)])}
        for reports in (run.training, reference.training)
    )
    return {end: run.training[end] for _, end in spans & reference_spans}
