"""Helpers that the clauses of a `FrameworkSuite` share: its runs, probes and checks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detcore.records import TrialRecord
from detcore.types import TrialState
from detcore_testing.framework.framework_checks import differences, shown
from detcore_testing.framework.framework_declarations import FrameworkDeclarations
from detcore_testing.framework.framework_runs import (
    CHECKPOINT_PERIOD,
    VALIDATION_PERIOD,
    FrameworkRun,
    FrameworkRuns,
)

# A stepping controller is called as often as its speed suggests, so means are rounded differently.
TRAINING_TOLERANCE = 1e-5
_PROBES = "detcore_testing.framework.framework_probes"
_RUNS = pytest.StashKey[FrameworkRuns]()


class FrameworkBase(FrameworkDeclarations):
    """Helpers that the clauses share."""

    @pytest.fixture
    def runs(
        self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> FrameworkRuns:
        """The runs of this plugin, made when they are first needed; shared by the class."""
        owner = request.node.getparent(pytest.Class)
        if _RUNS not in owner.stash:
            folder = tmp_path_factory.mktemp(type(self).__name__) / "suite"
            runs = FrameworkRuns(self, folder)
            owner.stash[_RUNS] = runs
            owner.addfinalizer(runs.close)
        shared: FrameworkRuns = owner.stash[_RUNS]
        return shared

    def validated_at(self) -> list[int]:
        """Return the batches after which the reference run has to validate."""
        due = range(VALIDATION_PERIOD, self.num_batches + 1, VALIDATION_PERIOD)
        return sorted({*due, self.num_batches})

    def saved_at(self) -> list[int]:
        """Return the batches after which the reference run has to save a checkpoint."""
        due = range(CHECKPOINT_PERIOD, self.num_batches + 1, CHECKPOINT_PERIOD)
        return sorted({*due, self.num_batches})

    def differences(self, found: Path, expected: Path) -> list[str]:
        """Return how the states in two checkpoints differ, bit for bit."""
        state = self.read_state(expected)
        assert state, "read_state found no array in the checkpoint"
        return differences(self.read_state(found), state, ignored=self.ignored_state)

    def check_same(self, found: Path, expected: Path, where: str = "last batch") -> None:
        """Check that the states in two checkpoints are the same, bit for bit."""
        told = self.differences(found, expected)
        assert not told, f"the state of the {where} is another:{shown(told)}"

    def check_resumed(self, runs: FrameworkRuns, told: Sequence[str], where: str) -> None:
        """Check that a resumed run does not differ; name the part that is probably missing."""
        assert not told, f"the resumed run differs {where}:{shown(told)}\n{self._find_loss(runs)}"

    def _find_loss(self, runs: FrameworkRuns) -> str:
        """Return which part of the state a resume probably loses; "" if it cannot be restored."""
        try:
            used(self, runs)
        except AssertionError:  # its own clause shows it
            return ""
        told = self.differences(runs.folder / "use" / "save", runs.reference.last_checkpoint)
        if told:
            return f"The restored state differs already: restore or save loses{shown(told)}"
        return (
            "The restored state is equal, the next batch is not: the state of an optimizer, a "
            "random generator or the data position is not saved or not restored, and read_state "
            "does not read it."
        )

    def inexact_resume(self, runs: FrameworkRuns) -> str:
        """Return why the framework's trials do not resume bit for bit; empty if they do."""
        return str(probe(runs, "discover").get("inexact_resume", ""))

    def skip_where_inexact(self, runs: FrameworkRuns) -> None:
        """Skip a clause on exact resume where the framework says that a resume is not exact."""
        reason = self.inexact_resume(runs)
        if reason:
            pytest.skip(f"Framework.inexact_resume: {reason}")

    def check_counter(self, checkpoint: Path, num_batches: int) -> None:
        """Check that a checkpoint says how many batches its trial has trained."""
        if self.batch_counter:
            state = self.read_state(checkpoint)
            assert self.batch_counter in state, f"read_state has no {self.batch_counter!r}"
            found = state[self.batch_counter]
            assert np.asarray(found) == num_batches, (
                f"{self.batch_counter} is {found} after {num_batches} batches of the trial"
            )


def probe(runs: FrameworkRuns, name: str, **arguments: Any) -> dict[str, Any]:
    """Run a program of `framework_probes` once; return its findings."""
    answer = runs.folder / f"{name}.answer.json"
    if not answer.exists():
        given = {"framework": runs.suite.framework, "answer": str(answer), **arguments}
        words = ("-m", _PROBES, name, json.dumps(given))
        try:
            finished = runs.detcore.python(*words, cwd=runs.model_dir, timeout_s=runs.timeout_s)
            text = f"exit code {finished.code}:\n{finished.output}"
        except TimeoutError as error:
            text = str(error)
        if not answer.exists():
            answer.write_text(json.dumps({"error": text}), encoding="utf-8")
    found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in found:
        raise AssertionError(found["error"])
    return found


def used(suite: FrameworkBase, runs: FrameworkRuns) -> dict[str, Any]:
    """Return the findings of the probe that uses a controller outside of a run."""
    folder = runs.folder / "use"
    folder.mkdir(exist_ok=True)
    return probe(
        runs,
        "use",
        folder=str(folder),
        entrypoint=suite.entrypoint,
        checkpoint=str(runs.reference.last_checkpoint),
        first_checkpoint=str(runs.reference.checkpoints[CHECKPOINT_PERIOD]),
        config=runs.settings("use"),
    )


def check_end(run: FrameworkRun, state: TrialState) -> TrialRecord:
    """Return the record of a run's trial, after checking the exit code and the trial's state."""
    assert run.code == (state is not TrialState.COMPLETED), f"exit code {run.code}:\n{run.output}"
    assert run.trial is not None, f"there is no trial:\n{run.output}"
    assert run.trial.state is state, f"the trial is {run.trial.state.value}:\n{run.output}"
    return run.trial


def check_completed(suite: FrameworkBase, run: FrameworkRun, steps: int | None = None) -> None:
    """Check that a run completed, after `steps` batches (default: the suite's `num_batches`)."""
    check_end(run, TrialState.COMPLETED)
    done = run.finished[-1].summary["trials"][0]["steps_completed"]
    assert done == (steps or suite.num_batches), f"{done} batches were trained"
