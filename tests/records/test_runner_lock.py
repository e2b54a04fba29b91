"""Test the lock that an experiment's runner holds."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from job_server import wait_for
from sqlalchemy import text

from detcore.contract.errors import NotFoundError
from detcore.records import SERVER_QUEUE, Database, Runner, RunnerLock
from detcore.records.engine import make_engine
from detcore.records.schema import submissions, users
from detcore.types import Control, ExperimentState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.records.conftest import Store

HOLD = """
import os, sys
from pathlib import Path
from detcore.records import Database
with Database.open(sys.argv[1]) as database:
    lock = database.open_lock(int(sys.argv[2]), Path(sys.argv[3]))
    print(int(lock.acquire()), flush=True)
    if "forks" in sys.argv:
        lock.close_in_children()
        if os.fork() == 0:
            print("forked", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def start_runner(store: Store, home: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD, store.url, str(store.experiment_id), home, *options]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def lock(store: Store) -> Iterator[RunnerLock]:
    lock = store.database.open_lock(store.experiment_id, store.home)
    with contextlib.closing(lock):
        yield lock


@pytest.fixture
def server_lock(postgresql_store: Store) -> Iterator[RunnerLock]:
    """The lock of an experiment on PostgreSQL, held by this process."""
    store = postgresql_store
    lock = store.database.open_lock(store.experiment_id, store.home)
    with contextlib.closing(lock):
        assert lock.acquire()
        yield lock


def test_one_process_acquires_lock(store: Store, lock: RunnerLock) -> None:
    """Processes with separate homes stand for several machines."""
    assert store.database.find_runner(store.experiment_id) is None
    with contextlib.ExitStack() as stack:
        homes = [str(store.home / str(number)) for number in range(3)]
        runners = [stack.enter_context(start_runner(store, home)) for home in homes]
        answers = [read_line(runner) for runner in runners]
        assert sorted(answers) == ["0", "0", "1"]
        holder = runners[answers.index("1")]
        assert store.database.find_runner(store.experiment_id) == Runner(os.uname()[1], holder.pid)
        assert store.database.is_experiment_alive(store.experiment_id)
        assert store.database.observe_experiment(store.experiment_id)[1]
        assert not lock.acquire()
        assert lock.find_holder().pid == holder.pid
        holder.kill()
        wait_for(lock.acquire)
        assert store.database.find_runner(store.experiment_id) == Runner(os.uname()[1], os.getpid())
        for runner in runners:
            runner.kill()
    lock.close()
    assert not store.database.is_experiment_alive(store.experiment_id)


def test_children_do_not_keep_lock_of_killed_run(store: Store, lock: RunnerLock) -> None:
    with start_runner(store, str(store.home), "forks") as process:
        assert {read_line(process), read_line(process)} == {"1", "forked"}
        children = f"/proc/{process.pid}/task/{process.pid}/children"
        with open(children, encoding="ascii") as file:
            child = int(file.read())
        process.kill()
        process.wait()
        try:
            wait_for(lock.acquire)
        finally:
            os.kill(child, signal.SIGKILL)


def test_kept_lock_is_held_until_exit(store: Store, lock: RunnerLock) -> None:
    assert lock.acquire()
    lock.keep()
    lock.close()
    assert lock.is_held()
    assert store.database.find_runner(store.experiment_id) is not None
    lock._is_kept = False


def test_submission_is_alive_with_server(store: Store) -> None:
    database, number = store.database, store.experiment_id
    with database.transaction(write=True) as connection:
        user = {"id": 1, "name": "ada", "is_admin": False, "is_active": True, "created_at": 0.0}
        connection.execute(users.insert().values(user))
        connection.execute(
            submissions.insert().values(
                experiment_id=number,
                user_id=1,
                submission_id="s",
                phase="QUEUED",
                test_mode=False,
                created_at=0.0,
            )
        )
    assert not database.is_experiment_alive(number)
    queue = database.open_lock(SERVER_QUEUE, store.home)
    with contextlib.closing(queue):
        assert queue.acquire()
        assert database.is_experiment_alive(number)
        with database.transaction(write=True) as connection:
            connection.execute(submissions.update().values(phase="ENDED"))
        assert not database.is_experiment_alive(number)


def test_lost_session_is_renewed(postgresql_store: Store, server_lock: RunnerLock) -> None:
    end_sessions(postgresql_store)
    assert server_lock.is_held()
    assert postgresql_store.database.find_runner(postgresql_store.experiment_id) is not None


def test_lock_is_lost_to_another_runner(postgresql_store: Store, server_lock: RunnerLock) -> None:
    end_sessions(postgresql_store)
    with start_runner(postgresql_store, str(postgresql_store.home / "other")) as other:
        assert read_line(other) == "1"
        assert not server_lock.is_held()
        other.kill()
    assert not server_lock.is_held()
    assert server_lock.is_lost


def test_lost_lock_is_held_after_reacquiring(
    postgresql_store: Store, server_lock: RunnerLock
) -> None:
    """A server holds the lock of a queued submission."""
    server_lock.is_lost = True
    session = server_lock._session
    assert session is not None
    session.close()
    assert not server_lock.is_held()
    assert server_lock.acquire()
    assert server_lock.is_held()


def test_runner_reclaims_lock_from_stale_session(
    server_lock: RunnerLock,
) -> None:
    """The server notices a lost network later than the client."""
    session = server_lock._session
    assert session is not None
    lost, session._connection = session._connection, None
    assert server_lock.is_held()
    with pytest.raises(Exception, match="terminating connection"):
        lost.execute("SELECT 1")
    lost.close()


def test_a_long_host_name_is_recognized(
    postgresql_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = postgresql_store
    monkeypatch.setattr("socket.gethostname", lambda: "pod-" + 70 * "x")
    lock = store.database.open_lock(store.experiment_id, store.home)
    with contextlib.closing(lock):
        assert lock.acquire()
        runner = store.database.find_runner(store.experiment_id)
        assert runner is not None
        assert runner.is_here


def test_linked_database_shares_locks(tmp_path: Path) -> None:
    with Database.open(f"sqlite:///{tmp_path / 'a.db'}") as database:
        (tmp_path / "b.db").symlink_to("a.db")
        with Database.open(f"sqlite:///{tmp_path / 'b.db'}") as linked:
            lock, other = database.open_lock(1, tmp_path), linked.open_lock(1, tmp_path)
            with contextlib.closing(lock), contextlib.closing(other):
                assert lock.acquire()
                assert not other.acquire()


def test_lock_check_does_not_block_runner(store: Store, lock: RunnerLock) -> None:
    stops = threading.Event()

    def look() -> None:
        while not stops.is_set():
            store.database.find_runner(store.experiment_id)
            time.sleep(0.001)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(200):
            other = store.database.open_lock(store.experiment_id, store.home)
            with contextlib.closing(other):
                assert other.acquire()
    finally:
        stops.set()
        watcher.join()


def end_sessions(store: Store) -> None:
    """End all other connections, as a restart of the server does."""
    statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != "
    statement += "pg_backend_pid() AND datname = current_database()"
    engine, guard = make_engine(store.url)
    with engine.connect() as connection:
        connection.execute(text(statement))
    guard.dispose()


def test_end_is_recorded_unless_request_changed(store: Store) -> None:
    database, number = store.database, store.experiment_id
    database.request_control(number, Control.PAUSE)
    for request in (None, Control.KILL):
        assert not database.conclude_experiment(number, ExperimentState.PAUSED, asked=request)
        assert database.get_experiment(number).state is ExperimentState.RUNNING
    assert database.conclude_experiment(number, ExperimentState.PAUSED, asked=Control.PAUSE)
    record = database.get_experiment(number)
    assert (record.state, record.control) == (ExperimentState.PAUSED, None)
    assert record.ended_at is not None
    assert database.conclude_experiment(number, ExperimentState.ERROR, asked=None, error="e")
    assert database.get_experiment(number).error == "e"
    with pytest.raises(NotFoundError):
        database.conclude_experiment(number + 1, ExperimentState.PAUSED, asked=None)
