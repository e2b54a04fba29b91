"""Fixtures: databases with an experiment, and programs that tests kill."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from databases import places, run_postgresql
from file_systems import mounted_disk
from postgresql_server import PostgreSQLServer

from detcore.log.events import CheckpointCommitted, CheckpointStarted
from detcore.records import Database

__all__ = ["places"]

PROGRAMS = Path(__file__).parent / "programs"


@dataclasses.dataclass(frozen=True)
class Store:
    """A database with one experiment and one started trial."""

    home: Path
    url: str
    database: Database
    experiment_id: int
    trial_id: int
    run_id: int

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    @property
    def file(self) -> Path:
        assert self.is_sqlite
        return self.home / "detcore.db"

    def begin(self, uuid: str, steps: int = 10, *, trial: int = 1) -> None:
        """Record the start of a checkpoint."""
        started = CheckpointStarted(uuid=uuid, storage_url="file:///ck", steps_completed=steps)
        self.database.record_checkpoint(started, trial_id=trial)

    def commit(self, uuid: str, steps: int = 10) -> None:
        """Record that a started checkpoint is complete."""
        self.database.record_checkpoint(
            CheckpointCommitted(
                uuid=uuid, metadata={"n": 1}, resources={"a": 3, "b/c": 4}, steps_completed=steps
            )
        )

    def save(self, uuid: str, steps: int = 10, *, trial: int = 1) -> str:
        """Record a complete checkpoint."""
        self.begin(uuid, steps, trial=trial)
        self.commit(uuid, steps)
        return uuid

    def log(self, run_id: int | None = None) -> Path:
        folder = self.home / "experiments" / str(self.experiment_id) / "trials"
        return folder / str(self.trial_id) / f"events-{run_id or self.run_id}.jsonl"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQLServer]:
    """A server with a database `records` whose tables are empty."""
    with run_postgresql(Database.open) as server:
        yield server


def _filled(home: Path, url: str) -> Iterator[Store]:
    with Database.open(url) as database:
        experiment = database.create_experiment(
            config={"searcher": {"metric": "loss"}}, config_text="x: 1\n", model_dir="/m", name="n"
        )
        trial = database.create_trial(experiment_id=experiment, hparams={"lr": 0.5}, seed=7)
        yield Store(home, url, database, experiment, trial, database.start_run(trial))


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    """A store on SQLite, for tests of its file."""
    home = tmp_path / "home"
    yield from _filled(home, f"sqlite:///{home / 'detcore.db'}")


@pytest.fixture
def postgresql_store(tmp_path: Path, postgresql: PostgreSQLServer) -> Iterator[Store]:
    """A store on PostgreSQL, for tests of its server."""
    name = postgresql.create_database("records")
    yield from _filled(tmp_path / "home", postgresql.url(name))
    postgresql.drop_database(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> Store:
    """A store on each database."""
    store: Store = request.getfixturevalue(f"{request.param}_store")
    return store


class Program:
    """A program that receives commands as JSON lines and forks with all modules imported."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.lines.readline() == "ready\n"

    def send(self, command: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    @property
    def lines(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        self.lines.close()


class Nursery(Program):
    """Forks children quickly and kills them; see programs/nursery.py."""

    def run(
        self,
        do: str,
        *,
        kill_after_s: float | None,
        during: Callable[[], object] = int,
        **fields: object,
    ) -> tuple[list[int], int]:
        """Run a child; return its acknowledged sequence numbers and exit code."""
        self.send({"do": do, "kill_after_s": kill_after_s, **fields})
        during()
        acknowledged: list[int] = []
        for line in self.lines:
            if line.startswith("ended"):
                return acknowledged, int(line.split()[1])
            acknowledged.append(int(line))
        raise RuntimeError("the nursery died")


class Crowd(Program):
    """Forks processes that act at the same moment; see programs/crowd.py."""

    def do(
        self, url: str, do: str, *, count: int, opens_together: bool = False, **fields: object
    ) -> list[str]:
        """Return the answers. With `opens_together`, opening the database is simultaneous too."""
        command = {"url": url, "do": do, "count": count, "opens_together": opens_together}
        self.send({**command, **fields})
        texts: list[str] = json.loads(self.lines.readline())
        return texts


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    nursery = Nursery("nursery.py")
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def crowd() -> Iterator[Crowd]:
    crowd = Crowd("crowd.py")
    yield crowd
    crowd.close()


@pytest.fixture
def moments() -> random.Random:
    """A random generator with a new seed, which is printed to repeat a failure."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed of the moments: {seed}")
    return random.Random(seed)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system of 512 kB; a new database needs 200 kB."""
    with mounted_disk(tmp_path / "small", size="512k") as folder:
        yield folder


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A separate file system."""
    with mounted_disk(tmp_path / "mounted", size="8m") as folder:
        yield folder
