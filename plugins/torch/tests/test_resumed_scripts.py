"""Scripts that are killed at step 58 report whether their resume is exact."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from _killed_scripts import SCRIPTS, Script, Signal
from _script_faults import FILE, LIBRARY_PARTS, PARTS

from detcore.data import StepDigests, read_digests
from detcore.records import Database
from detcore_torch.scripts.step_log import StepLog

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("libraries")]
KILL = Signal(58, needs_checkpoint=True)
LIBRARIES = ("trainer", "lightning", "accelerate")
EXACT = {"start_step": 30, "last_step": 50, "num_compared": 3, "difference": None}


def read_resumes(script: Script) -> list[dict[str, Any]]:
    """Return the recorded comparisons of a script's resumed runs."""
    with Database.open(f"sqlite:///{script.folder}/home/detcore.db") as database:
        return [dict(event.payload) for event in database.events(1, "resume_compared")]


class Killed:
    """A script that was killed at step 58, with a checkpoint at step 30.

    Args:
        library: Its library.
        folder: Receives the runs.
    """

    def __init__(self, library: str, folder: Path) -> None:
        self.library = library
        self._path = SCRIPTS / f"resumed_{library}.py"
        self._folder, self._killed = folder / "run", folder / "killed"
        Script(self._path, self._folder).interrupt(KILL)
        self._folder.rename(self._killed)

    def resume(self, *arguments: str, code: int = 0) -> Script:
        """Resume the killed script; records contain the path of its folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._killed, self._folder)
        script = Script(self._path, self._folder, arguments, starts=1)
        assert script.run() == code, script.output()
        return script


@pytest.fixture(scope="module")
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return Killed(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("killed", LIBRARIES, indirect=True)
def test_planted_faults_are_named(killed: Killed) -> None:
    """Each fault is planted in a child of one exact resume, before the check."""
    script = killed.resume("--fault=each")
    assert read_resumes(script) == [EXACT]
    errors = json.loads((script.folder / FILE).read_text())
    parts = {**PARTS, **LIBRARY_PARTS[killed.library]}
    assert errors.keys() == parts.keys()
    unnamed = {
        name: errors[name] for name, part in parts.items() if not re.search(part, errors[name])
    }
    assert unnamed == {}


@pytest.mark.parametrize("killed", LIBRARIES, indirect=True)
def test_resumed_script_is_checked(killed: Killed) -> None:
    assert read_resumes(killed.resume()) == [EXACT]
    (record,) = read_resumes(killed.resume("--fault=hook"))
    assert record["difference"]["step"] == 31
    assert record["difference"]["kind"] == "loss"

    forgetful = killed.resume("--fault=slot", code=3)
    assert "['exp_avg'] was saved and not restored: its values differ" in forgetful.output()
    # The same run continues, although the argument changed.
    forgetful.arguments = ["--fault=slot", "--inexact-resume=ignore"]
    assert forgetful.run() == 0, forgetful.output()
    assert len(read_resumes(forgetful)) == 1


def test_state_outside_checkpoint_is_reported(tmp_path: Path) -> None:
    script = Script(SCRIPTS / "resumed_trainer.py", tmp_path / "run", ["--fault=skip"])
    script.interrupt(KILL)
    assert script.run() == 0
    (record,) = read_resumes(script)
    assert record["difference"]["kind"] == "record content", record


@pytest.fixture
def digests(tmp_path: Path) -> StepDigests:
    return StepDigests(tmp_path / "digests-1.bin", run_id=1, start_step=0, every=10)


def test_complete_steps_are_written_without_reports(
    digests: StepDigests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = StepLog(SimpleNamespace(digests=digests))  # type: ignore[arg-type]  # all that it reads
    monkeypatch.setattr("detcore_torch.scripts.step_log._FLUSH_INTERVAL_S", 0.0)
    for step in range(1, 31):
        log.log_batch(step, {"x": torch.ones(2)}, [step])
        log.log_losses(step, [torch.tensor(0.5), "text", torch.ones(3)])
    recorded = read_digests(tmp_path)
    assert recorded is not None
    assert list(recorded.steps) == [1, 10, 20], "the process may be killed in step 30"
    assert all(all(row) for row in recorded.steps.values())


def test_all_batches_of_a_step_are_digested(digests: StepDigests, tmp_path: Path) -> None:
    log = StepLog(SimpleNamespace(digests=digests))  # type: ignore[arg-type]  # all that it reads
    for step, second in ((10, 2.0), (20, 2.0), (30, 3.0)):
        for value in (1.0, second):
            log.log_batch(step, torch.tensor([value]))
            log.log_losses(step, [value])
    digests.close()
    recorded = read_digests(tmp_path)
    assert recorded is not None
    assert recorded.steps[10] == recorded.steps[20]
    assert all(
        first == second == 0 or first != second
        for first, second in zip(recorded.steps[10], recorded.steps[30], strict=True)
    )
