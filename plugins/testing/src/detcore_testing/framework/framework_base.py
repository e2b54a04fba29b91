"""Shared helpers of the `FrameworkSuite` clauses: runs, probes and checks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detcore.records import TrialRecord
from detcore.types import TrialState
from detcore_testing.framework.framework_checks import compare_states, format_faults
from detcore_testing.framework.framework_declarations import FrameworkDeclarations
from detcore_testing.framework.framework_runs import (
    CHECKPOINT_PERIOD,
    VALIDATION_PERIOD,
    FrameworkRun,
    FrameworkRuns,
)

# A stepping controller is called at intervals that depend on its speed, so means round differently.
TRAINING_TOLERANCE = 1e-5
_PROBES = "detcore_testing.framework.framework_probes"
_RUNS = pytest.StashKey[FrameworkRuns]()


class FrameworkBase(FrameworkDeclarations):
    """Shared helpers of the clauses."""

    @pytest.fixture
    def runs(
        self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> FrameworkRuns:
        """Runs of this plugin, created on first use and shared by the test class."""
        owner = request.node.getparent(pytest.Class)
        if _RUNS not in owner.stash:
            folder = tmp_path_factory.mktemp(type(self).__name__) / "suite"
            runs = FrameworkRuns(self, folder)
            owner.stash[_RUNS] = runs
            owner.addfinalizer(runs.close)
        shared: FrameworkRuns = owner.stash[_RUNS]
        return shared

    def validated_at(self) -> list[int]:
        """Return the batches after which the reference run must validate."""
        due = range(VALIDATION_PERIOD, self.num_batches + 1, VALIDATION_PERIOD)
        return sorted({*due, self.num_batches})

    def saved_at(self) -> list[int]:
        """Return the batches after which the reference run must save a checkpoint."""
        due = range(CHECKPOINT_PERIOD, self.num_batches + 1, CHECKPOINT_PERIOD)
        return sorted({*due, self.num_batches})

    def compare_states(self, actual: Path, expected: Path) -> list[str]:
        """Return the bitwise differences between the states in two checkpoints."""
        state = self.read_state(expected)
        assert state, "read_state returned no array for the checkpoint"
        return compare_states(self.read_state(actual), state, ignored=self.ignored_state)

    def check_same(self, actual: Path, expected: Path, where: str = "last batch") -> None:
        """Check that the states in two checkpoints are the same, bit for bit."""
        faults = self.compare_states(actual, expected)
        assert not faults, f"the state of the {where} differs:{format_faults(faults)}"

    def check_resumed(self, runs: FrameworkRuns, faults: Sequence[str], where: str) -> None:
        """Check that a resumed run has no faults. The error names the state probably lost."""
        assert not faults, (
            f"the resumed run differs {where}:{format_faults(faults)}\n{self._find_loss(runs)}"
        )

    def _find_loss(self, runs: FrameworkRuns) -> str:
        """Return the state that resuming probably loses, or "" if restore fails."""
        try:
            use_controller(self, runs)
        except AssertionError:  # another clause reports it
            return ""
        directory = runs.folder / "use" / "save"
        faults = self.compare_states(directory, runs.reference.last_checkpoint)
        if faults:
            return f"The restored state differs: restore or save loses{format_faults(faults)}"
        return (
            "The restored state is equal, but the next batch differs. The state of an optimizer, a "
            "random generator or the data position is not saved or not restored, and read_state "
            "does not read it."
        )

    def inexact_resume(self, runs: FrameworkRuns) -> str:
        """Return why the framework's trials do not resume bit for bit, or "" if they do."""
        return str(run_probe(runs, "discover").get("inexact_resume", ""))

    def skip_where_inexact(self, runs: FrameworkRuns) -> None:
        """Skip a clause on exact resume if the framework declares inexact resume."""
        reason = self.inexact_resume(runs)
        if reason:
            pytest.skip(f"Framework.inexact_resume: {reason}")

    def check_counter(self, checkpoint: Path, num_batches: int) -> None:
        """Check the batch counter in a checkpoint."""
        if self.batch_counter:
            state = self.read_state(checkpoint)
            assert self.batch_counter in state, f"read_state has no {self.batch_counter!r}"
            count = state[self.batch_counter]
            assert np.asarray(count) == num_batches, (
                f"{self.batch_counter} is {count} after {num_batches} batches of the trial"
            )


def run_probe(runs: FrameworkRuns, name: str, **arguments: Any) -> dict[str, Any]:
    """Run a program of `framework_probes` and return its findings. Results are cached."""
    answer = runs.folder / f"{name}.answer.json"
    if not answer.exists():
        request = {"framework": runs.suite.framework, "answer": str(answer), **arguments}
        words = ("-m", _PROBES, name, json.dumps(request))
        try:
            finished = runs.detcore.python(*words, cwd=runs.model_dir, timeout_s=runs.timeout_s)
            text = f"exit code {finished.code}:\n{finished.output}"
        except TimeoutError as error:
            text = str(error)
        if not answer.exists():
            answer.write_text(json.dumps({"error": text}), encoding="utf-8")
    findings: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in findings:
        raise AssertionError(findings["error"])
    return findings


def use_controller(suite: FrameworkBase, runs: FrameworkRuns) -> dict[str, Any]:
    """Return the findings of the probe that uses a controller outside a run."""
    directory = runs.folder / "use"
    directory.mkdir(exist_ok=True)
    return run_probe(
        runs,
        "use",
        folder=str(directory),
        entrypoint=suite.entrypoint,
        checkpoint=str(runs.reference.last_checkpoint),
        first_checkpoint=str(runs.reference.checkpoints[CHECKPOINT_PERIOD]),
        config=runs.settings("use"),
    )


def check_end(run: FrameworkRun, state: TrialState) -> TrialRecord:
    """Check the exit code and the trial's state, and return the trial's record."""
    assert run.code == (state is not TrialState.COMPLETED), f"exit code {run.code}:\n{run.output}"
    assert run.trial is not None, f"the run created no trial:\n{run.output}"
    assert run.trial.state is state, f"the trial's state is {run.trial.state.value}:\n{run.output}"
    return run.trial


def check_completed(suite: FrameworkBase, run: FrameworkRun, steps: int | None = None) -> None:
    """Check that a run completed after `steps` batches (default: the suite's `num_batches`)."""
    check_end(run, TrialState.COMPLETED)
    num_batches = run.finished[-1].summary["trials"][0]["steps_completed"]
    assert num_batches == (steps or suite.num_batches), f"the trial trained {num_batches} batches"
