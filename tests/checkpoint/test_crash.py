"""Processes killed with SIGKILL at random moments of saving and deleting."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from detcore.checkpoint import delete_checkpoint, list_committed, verify_checkpoint
from detcore.records import CheckpointRecord, Database, ingest_event_logs
from detcore.storage import LocalStorage

NUM_KILLS = 15
NUM_FILES = 3
# Saves until it is killed. Its start recovers unfinished work of the previous process.
SCRIPT = """
import sys
from pathlib import Path
from detcore import core

kind = sys.argv[1]
source = Path("source")
source.mkdir(exist_ok=True)

def fill(folder, step):
    for index in range(NUM_FILES):
        (folder / f"part-{index}").write_bytes(bytes([step % 256, index]) * (1 << 20))

with core.init(resume=True) as context:
    print("ready", flush=True)
    sys.stdin.readline()
    uuids = []
    for step in range(1, 1_000_000):
        metadata = {"steps_completed": step}
        if kind == "upload":
            fill(source, step)
            uuid = context.checkpoint.upload(source, metadata)
        else:
            with context.checkpoint.store_path(metadata) as (path, uuid):
                fill(path, step)
        uuids.append(uuid)
        print(uuid, step, flush=True)
        if kind == "delete" and len(uuids) > 1:
            context.checkpoint.delete(uuids.pop(0))
""".replace("NUM_FILES", str(NUM_FILES))


class Trial:
    """The trial of a script that is started, killed and started again."""

    def __init__(self, home: Path, database: Database) -> None:
        self.home, self.database = home, database
        self.storage = LocalStorage(home / "checkpoints")

    def list_records(self) -> list[CheckpointRecord]:
        ingest_event_logs(self.database, self.home)
        return self.database.list_checkpoints(trial_id=1)

    def run(self, kind: str, seconds: float) -> list[str]:
        """Let a process save for a while; return the UUID and step that it acknowledged last."""
        with subprocess.Popen(
            [sys.executable, "save.py", kind], cwd=self.home, text=True,
            env={**os.environ, "DETCORE_HOME": str(self.home)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == "ready\n", "the process did not start"
                self.check_settled()
                process.stdin.write("\n")
                process.stdin.flush()
                time.sleep(seconds)
            finally:
                process.kill()
            lines = [line for line in process.stdout if line.endswith("\n")]
        assert process.returncode == -signal.SIGKILL
        return lines[-1].split() if lines else []

    def check_settled(self) -> None:
        """Check that of the processes before this one nothing half done is left."""
        records = self.list_records()
        complete = {record.uuid for record in records if record.state == "COMPLETED"}
        assert {record.state for record in records} <= {"COMPLETED", "DELETED"}
        root = self.storage.root
        folders = {path.name for path in root.glob("*") if path.is_dir()}
        assert folders == complete == {*list_committed(self.storage)}
        assert not any(verify_checkpoint(self.storage, uuid) for uuid in complete)

    def check_killed(self, acknowledged: list[str]) -> bool:
        """Check the files right after a kill; return whether a save or deletion is unfinished."""
        records = {record.uuid: record for record in self.list_records()}
        complete = {uuid for uuid, record in records.items() if record.state == "COMPLETED"}
        for uuid in complete | {*list_committed(self.storage)}:
            assert verify_checkpoint(self.storage, uuid) == []
        if acknowledged:
            uuid, step = acknowledged[0], int(acknowledged[1])
            assert uuid in complete
            latest = self.database.latest_checkpoint(1)
            assert latest is not None
            assert latest.steps_completed >= step
            for index in range(NUM_FILES):
                data = (self.storage.root / uuid / f"part-{index}").read_bytes()
                assert data == bytes([step % 256, index]) * (1 << 20)
        return bool({path.name for path in self.storage.root.iterdir()} - complete)

    def delete_most(self, dice: random.Random) -> None:
        """Keep the disk small, as retention would."""
        complete = [record for record in self.list_records() if record.state == "COMPLETED"]
        for record in complete[:-1]:
            if dice.random() < 0.8:
                delete_checkpoint(self.storage, record.uuid, database=self.database)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["store_path", "upload", "delete"])
def test_checkpoints_survive_kills_at_any_moment(tmp_path: Path, kind: str) -> None:
    (tmp_path / "save.py").write_text(SCRIPT)
    dice = random.Random(kind)
    num_half_done = 0
    with Database.open(f"sqlite:///{tmp_path / 'detcore.db'}") as database:
        trial = Trial(tmp_path, database)
        for _ in range(NUM_KILLS):
            num_half_done += trial.check_killed(trial.run(kind, dice.uniform(0.0, 0.12)))
            trial.delete_most(dice)
        trial.run(kind, 0.0)
    assert num_half_done, "no kill hit a save or a deletion: the test proves too little"
