"""Processes killed with SIGKILL at random moments of saving and deleting."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import IO

import pytest
from fake_runner import FakeRunner

from detcore import core
from detcore.checkpoint import list_committed, recover_checkpoints, verify_checkpoint
from detcore.database import Database, ingest_spools
from detcore.storage import LocalStorage
from detcore.types import TrialInfo

KILLS = 45
FILE_BYTES = 2 << 20
NUM_FILES = 3


class Trial:
    """A trial whose process is started, killed and started again."""

    def __init__(self, home: Path, database: Database) -> None:
        self.home = home
        self.database = database
        self.storage = LocalStorage(home / "checkpoints")
        self.experiment_id = database.create_experiment(
            config={}, config_text=None, model_dir="/", name="crash"
        )
        self.trial_id = database.create_trial(experiment_id=self.experiment_id, hparams={}, seed=0)
        self.trial_dir = home / f"experiments/{self.experiment_id}/trials/{self.trial_id}"
        self.process: Process | None = None

    def close(self) -> None:
        """Let no process outlive a test that failed."""
        if self.process is not None and not self.process.lines.closed:
            self.process.kill()

    def start(self, ways: str) -> Process:
        """Start a process that opens the trial, and saves until it is killed once it may go on.

        As the runner does, this settles first what the process before left half done.
        """
        ingest_spools(self.database, self.home)
        recover_checkpoints(self.database, self.storage, self.trial_id)
        runner = FakeRunner(self.database.url, self.home)
        channel = runner.workers_end(self.trial_id)
        info = TrialInfo(
            experiment_id=self.experiment_id,
            trial_id=self.trial_id,
            run_id=self.database.start_run(self.trial_id),
            trial_seed=0,
            hparams={},
            config={},
            model_dir="/",
            trial_dir=str(self.trial_dir),
        )
        path = self.home / "info.json"
        path.write_text(json.dumps(dataclasses.asdict(info)))
        (heard, say), (go_on, go) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid:
            os.close(say)
            os.close(go_on)
            self.process = Process(pid, os.fdopen(heard), go, runner)
            return self.process
        os.environ.update(
            DETCORE_HOME=str(self.home),
            DETCORE_TRIAL_INFO=str(path),
            DETCORE_CHANNEL_FD=str(channel),
        )
        try:
            _save_for_ever(say, go_on, ways, self.home / "source")
        finally:
            os._exit(1)


@dataclasses.dataclass
class Process:
    """A process of the trial."""

    pid: int
    lines: IO[str]
    go: int
    runner: FakeRunner

    def wait_until_open(self) -> None:
        assert self.lines.readline() == "ready\n", "the process did not start"

    def kill(self) -> list[list[str]]:
        """Kill it; return the checkpoints that it acknowledged: UUID and step."""
        os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self.runner.close()
        assert os.WTERMSIG(status) == signal.SIGKILL
        with self.lines:
            os.close(self.go)
            return [line.split() for line in self.lines if line.endswith("\n")]


def _save_for_ever(say: int, go_on: int, ways: str, source: Path) -> None:
    source.mkdir(exist_ok=True)
    with core.init() as context:
        os.write(say, b"ready\n")
        os.read(go_on, 1)
        step = 0
        kept: list[str] = []
        while True:
            step += 1
            metadata = {"steps_completed": step}
            if ways == "upload":
                _fill(source, step)
                uuid = context.checkpoint.upload(source, metadata)
            else:
                with context.checkpoint.store_path(metadata) as (path, uuid):
                    _fill(path, step)
            kept.append(uuid)
            os.write(say, f"{uuid} {step}\n".encode())
            if ways == "delete" and len(kept) > 1:
                context.checkpoint.delete(kept.pop(0))


def _fill(folder: Path, step: int) -> None:
    for index in range(NUM_FILES):
        (folder / f"part-{index}").write_bytes(_content(step, index))


def _content(step: int, index: int) -> bytes:
    seed = hashlib.sha256(f"{step}/{index}".encode()).digest()
    return seed * (FILE_BYTES // len(seed))


@pytest.mark.soak
@pytest.mark.parametrize("ways", ["store_path", "upload", "delete"])
def test_killed_at_any_moment(tmp_path: Path, ways: str) -> None:
    dice = random.Random(ways)
    moments: Counter[str] = Counter()
    with (
        Database.open(f"sqlite:///{tmp_path / 'detcore.db'}") as database,
        contextlib.closing(Trial(tmp_path, database)) as trial,
    ):
        for _ in range(KILLS // 3):
            process = trial.start(ways)
            process.wait_until_open()
            _check_settled(trial)
            os.write(process.go, b"x")
            time.sleep(dice.uniform(0.0, 0.12))
            moments[_check_killed(trial, process.kill())] += 1
            _drop_most(trial, dice)
        process = trial.start(ways)
        process.wait_until_open()
        _check_settled(trial)
        process.kill()
    assert moments["half done"], "no kill hit a save or a deletion: the test proves too little"


def _check_killed(trial: Trial, acknowledged: list[list[str]]) -> str:
    """Check what is there right after a kill; return which moment was hit."""
    ingest_spools(trial.database, trial.home)
    records = trial.database.list_checkpoints(trial_id=trial.trial_id)
    states = {record.uuid: record.state for record in records}
    listed = {uuid for uuid, state in states.items() if state == "COMPLETED"}
    for uuid in listed | set(list_committed(trial.storage)):
        assert verify_checkpoint(trial.storage, uuid) == []
    if acknowledged:
        uuid, step = acknowledged[-1]
        assert states[uuid] == "COMPLETED"
        for index in range(NUM_FILES):
            path = trial.storage.root / uuid / f"part-{index}"
            assert path.read_bytes() == _content(int(step), index)
        latest = trial.database.latest_checkpoint(trial.trial_id)
        assert latest is not None
        assert latest.steps_completed >= int(step)
    folders = {path.name for path in trial.storage.root.iterdir()}
    return "half done" if folders - listed else "between two"


def _check_settled(trial: Trial) -> None:
    """Check that of the processes before this one nothing half done is left."""
    records = trial.database.list_checkpoints(trial_id=trial.trial_id)
    states = {record.uuid: record.state for record in records}
    listed = {uuid for uuid, state in states.items() if state == "COMPLETED"}
    assert set(states.values()) <= {"COMPLETED", "DELETED"}
    assert {path.name for path in trial.storage.root.iterdir() if path.is_dir()} == listed
    assert set(list_committed(trial.storage)) == listed
    for uuid in listed:
        assert verify_checkpoint(trial.storage, uuid) == []


def _drop_most(trial: Trial, dice: random.Random) -> None:
    """Keep the disk small: forget most of what is committed, as retention would."""
    from detcore.checkpoint import delete_checkpoint

    committed = trial.database.list_checkpoints(trial_id=trial.trial_id, states=["COMPLETED"])
    for record in committed[:-1]:
        if dice.random() < 0.8:
            delete_checkpoint(trial.storage, record.uuid, database=trial.database)
