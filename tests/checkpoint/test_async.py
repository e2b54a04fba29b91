"""Asynchronous saves: progress, order, failures and cleanup."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from file_systems import mounted_disk
from processes import wait_until
from storage_servers import gcs_server, gcs_settings, s3_settings, seaweedfs

from detcore.checkpoint import (
    CheckpointContext,
    list_committed,
    read_manifest,
    recover_checkpoints,
    verify_checkpoint,
)
from detcore.distributed import DistributedContext
from detcore.errors import (
    CheckpointNotFoundError,
    CheckpointTimeoutError,
    ContextStateError,
    InvalidCheckpointError,
    StorageError,
    StorageFullError,
)
from detcore.log.events import CheckpointCommitted
from detcore.storage import LocalStorage, StorageBackend
from detcore.types import TensorInfo
from detcore_storage import GcsStorage, S3Storage

META = {"steps_completed": 1}
TIMEOUT_S = 60.0


class Gate:
    """A snapshot whose writing waits until it is let go."""

    def __init__(self, content: bytes = b"weights", error: Exception | None = None) -> None:
        self.opened = threading.Event()
        self.thread: threading.Thread | None = None
        self._content = content
        self._error = error

    def open_soon(self, after_s: float = 0.1) -> None:
        threading.Timer(after_s, self.opened.set).start()

    def __call__(self, path: Path) -> Callable[[], None]:
        (path / "small").write_bytes(b"at once")

        def write() -> None:
            self.thread = threading.current_thread()
            assert self.opened.wait(TIMEOUT_S)
            if self._error is not None:
                raise self._error
            (path / "weights").write_bytes(self._content)

        return write


def open_gate(content: bytes = b"weights", error: Exception | None = None) -> Gate:
    gate = Gate(content, error)
    gate.opened.set()
    return gate


def test_async_save_is_complete_when_recorded(desk: Any) -> None:
    gate = Gate()
    began = time.monotonic()
    name = desk.save_async(gate, {"steps_completed": 7, "note": "x"})
    assert desk.states() == {name: "ACTIVE"}
    with pytest.raises(CheckpointNotFoundError):
        read_manifest(desk.storage, name)  # another process sees nothing of it
    desk.poll()
    assert desk.saved == []
    gate.opened.set()
    desk.wait()
    assert gate.thread is not threading.current_thread()
    assert desk.states() == {name: "COMPLETED"}
    assert sorted(desk.names(name)) == ["manifest.json", "metadata.json", "small", "weights"]
    assert verify_checkpoint(desk.storage, name) == []
    (save,) = desk.saved
    assert save.uuid == name
    assert save.stalled_s is not None
    assert save.total_s is not None
    assert 0 < save.stalled_s <= save.total_s <= time.monotonic() - began
    desk.poll()
    assert desk.saved == [save]


def test_commits_are_announced_on_the_training_thread(desk: Any) -> None:
    announced: list[tuple[str, str, threading.Thread]] = []
    desk.on_commit = lambda uuid: announced.append(
        (uuid, desk.states()[uuid], threading.current_thread())
    )
    gate = Gate()
    first = desk.save_async(gate, META)
    desk.poll()
    assert announced == []
    gate.opened.set()
    desk.wait()
    with desk.store_path(META) as (path, second):
        (path / "weights").write_bytes(b"2")
    desk.save_async(open_gate(error=OSError("bad disk")), META)
    with pytest.raises(OSError, match="bad disk"):
        desk.wait()
    here = threading.current_thread()
    assert announced == [(first, "COMPLETED", here), (second, "COMPLETED", here)]


def test_async_saves_run_one_at_a_time_in_order(desk: Any) -> None:
    first, order = Gate(b"1"), list[str]()

    def second(path: Path) -> None:
        order.append("snapshot 2 while 1 is " + desk.states()[one])
        (path / "weights").write_bytes(b"2")

    one = desk.save_async(first, META)
    first.open_soon(1.0)
    two = desk.save_async(second, {"steps_completed": 2})
    desk.wait()
    assert order == ["snapshot 2 while 1 is COMPLETED"]
    assert [save.uuid for save in desk.saved] == [one, two]
    assert desk.get_manifest(two).parent == one
    # The wait for the first save counts towards the second.
    assert desk.saved[1].stalled_s > 0.1


@pytest.mark.parametrize("how", ["upload", "store_path", "delete", "save_async", "restore", "own"])
def test_later_operations_wait_for_async_save(desk: Any, folder: Path, how: str) -> None:
    gate = Gate()
    name = desk.save_async(gate, META)
    gate.open_soon()
    if how == "upload":
        desk.upload(folder, META)
    elif how == "store_path":
        with desk.store_path(META) as (path, _):
            (path / "x").write_bytes(b"")
    elif how == "delete":
        desk.delete(name)
    elif how == "save_async":
        desk.save_async(open_gate(), META)
        desk.wait()
    elif how == "restore":
        with desk.restore_path(name) as path:
            assert (path / "weights").read_bytes() == b"weights"
    else:
        assert desk.get_metadata(name) == META
    assert desk.saved[0].uuid == name
    assert set(desk.states().values()) <= {"COMPLETED", "DELETED"}


@pytest.mark.parametrize("collect", ["poll", "wait", "save_async", "upload", "close"])
def test_async_failure_is_raised_once_and_cleans_up(desk: Any, folder: Path, collect: str) -> None:
    error = OSError(5, "the disk says no")
    name = desk.save_async(open_gate(error=error), META)
    wait_until(lambda: desk.steps_being_saved is None)  # without taking note of it
    calls: dict[str, Callable[[], object]] = {
        "poll": desk.poll,
        "wait": desk.wait,
        "save_async": lambda: desk.save_async(open_gate(), META),
        "upload": lambda: desk.upload(folder, META),
        "close": lambda: desk.close(TIMEOUT_S),
    }
    with pytest.raises(OSError, match="the disk says no") as caught:
        calls[collect]()
    assert caught.value is error
    assert desk.states() == {name: "DELETED"}
    assert desk.names(name) == []
    assert desk.saved == []
    calls[collect]()
    desk.wait()


def test_failed_snapshot_leaves_no_files(desk: Any) -> None:
    def snapshot(path: Path) -> None:
        (path / "half").write_bytes(b"x")
        raise ValueError("the model has no weights")

    with pytest.raises(ValueError, match="no weights"):
        desk.save_async(snapshot, META)
    assert list(desk.states().values()) == ["DELETED"]
    assert desk.storage.list() == []
    desk.wait()


def test_async_save_checks_metadata_and_rank(desk: Any) -> None:
    with pytest.raises(InvalidCheckpointError, match="steps_completed"):
        desk.save_async(open_gate(), {})
    assert desk.states() == {}
    other = CheckpointContext(
        storage=desk.storage,
        distributed=DistributedContext(),
    )
    other._distributed = type("Rank1", (), {"rank": 1})()
    with pytest.raises(ContextStateError, match=r"save_async\(\) was called on rank 1"):
        other.save_async(open_gate(), META)


def test_tensors_are_described_after_snapshot(desk: Any) -> None:
    names: list[str] = []

    def snapshot(path: Path) -> None:
        names.append("snapshot")
        (path / "w.npy").write_bytes(b"x")

    def tensors() -> list[TensorInfo]:
        names.append("tensors")
        return [TensorInfo("dense/kernel", (2, 3), "float32", "w.npy")]

    name = desk.save_async(snapshot, META, tensors=tensors)
    (tensor,) = desk.get_manifest(name).tensors
    assert names == ["snapshot", "tensors"]
    assert tensor == TensorInfo("dense/kernel", (2, 3), "float32", "w.npy")


def test_copies_are_released_before_upload(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Copy:
        """A gigabyte, say."""

    references: list[weakref.ref[Copy]] = []
    copies: list[Copy | None] = []

    def snapshot(path: Path) -> Callable[[], None]:
        copy = Copy()
        references.append(weakref.ref(copy))

        def write() -> None:
            (path / "weights").write_text(str(copy))

        return write

    commit = desk.storage.create

    def create(key: str, data: bytes) -> None:
        copies.append(references[0]())
        commit(key, data)

    monkeypatch.setattr(desk.storage, "create", create)
    desk.save_async(snapshot, META)
    desk.wait()
    assert copies == [None]


def test_wait_can_be_repeated_after_timeout(desk: Any) -> None:
    gate = Gate()
    name = desk.save_async(gate, META)
    with pytest.raises(CheckpointTimeoutError, match=r"batch 1 was not saved within") as caught:
        desk.wait(0.05)
    assert caught.value.uuid == name
    assert "its files were still being written" in str(caught.value)
    assert "next start keeps this checkpoint if it was" in str(caught.value)
    gate.opened.set()
    desk.wait(TIMEOUT_S)
    assert desk.states() == {name: "COMPLETED"}


def test_timeout_may_shrink_while_waiting(desk: Any) -> None:
    gate = Gate()
    desk.save_async(gate, META)
    timeouts = iter([600.0, 600.0])
    with pytest.raises(CheckpointTimeoutError):
        desk.wait(lambda: next(timeouts, 0.0))
    gate.opened.set()
    desk.wait()


def test_cancelled_save_leaves_no_files(desk: Any) -> None:
    uuid = desk.save_async(open_gate(), META)
    desk.wait()
    gate = Gate()
    name = desk.save_async(gate, {"steps_completed": 2})
    gate.open_soon()
    desk.cancel_save(TIMEOUT_S)
    assert desk.states() == {uuid: "COMPLETED", name: "DELETED"}
    assert list_committed(desk.storage) == [uuid]
    assert desk.names(name) == []
    assert desk.steps_being_saved is None
    desk.wait()
    assert not desk.abandon()


def test_late_save_is_recovered_by_next_start(desk: Any) -> None:
    gate = Gate()
    name = desk.save_async(gate, META)
    with pytest.raises(CheckpointTimeoutError):
        desk.close(0.05)
    assert desk.abandon()
    assert desk.states() == {name: "ACTIVE"}
    recover_checkpoints(desk.database, desk.storage, desk.trial_id)
    assert desk.states() == {name: "DELETED"}
    gate.opened.set()
    wait_until(lambda: not desk.abandon())
    assert list_committed(desk.storage) == []


def test_late_commit_is_kept_by_next_start(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends between the manifest and the record."""
    reached, may_go_on = threading.Event(), threading.Event()
    record = desk.database.record_checkpoint

    def late(change: Any, **options: Any) -> None:
        if not isinstance(change, CheckpointCommitted):
            record(change, **options)
            return
        reached.set()
        assert may_go_on.wait(TIMEOUT_S)

    monkeypatch.setattr(desk.database, "record_checkpoint", late)
    name = desk.save_async(open_gate(), META)
    assert reached.wait(TIMEOUT_S)
    with pytest.raises(CheckpointTimeoutError):
        desk.close(0.0)
    monkeypatch.setattr(desk.database, "record_checkpoint", record)
    assert desk.states() == {name: "ACTIVE"}
    assert recover_checkpoints(desk.database, desk.storage, desk.trial_id) == [name]
    assert desk.states() == {name: "COMPLETED"}
    may_go_on.set()
    assert verify_checkpoint(desk.storage, name) == []


def test_save_failure_does_not_hide_trial_error(
    desk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    desk.save_async(open_gate(error=StorageError("the bucket was deleted")), META)
    error = ZeroDivisionError("the user's own")
    desk.close(TIMEOUT_S, error)
    assert "the bucket was deleted" in caplog.text
    if hasattr(error, "__notes__"):
        assert "the bucket was deleted" in error.__notes__[0]


def test_async_save_explains_full_disk(tmp_path: Path, database: Any, make_desk: Any) -> None:
    with mounted_disk(tmp_path / "disk", size="1m") as disk:
        desk = make_desk(database, LocalStorage(disk / "checkpoints"))
        first = desk.save_async(open_gate(bytes(600_000)), META)
        desk.wait()
        desk.save_async(open_gate(bytes(600_000)), META)
        with pytest.raises(StorageFullError, match="bytes are missing") as caught:
            desk.wait()
        assert isinstance(caught.value.__cause__, OSError)
        assert list_committed(desk.storage) == [first]
        assert [path.name for path in desk.storage.root.iterdir()] == [first]


def test_forked_child_does_not_wait_for_save(desk: Any) -> None:
    gate = Gate()
    name = desk.save_async(gate, META)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        desk.poll()
        desk.wait()
        desk.close(TIMEOUT_S)
        os._exit(0 if desk.steps_being_saved is None else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    gate.opened.set()
    desk.wait()
    assert desk.states() == {name: "COMPLETED"}


def test_records_are_usable_during_async_save(desk: Any) -> None:
    """The saving thread writes to them too."""
    names = []
    for step in range(1, 21):
        names.append(desk.save_async(open_gate(), {"steps_completed": step}))
        for _ in range(5):
            desk.states()
    desk.wait()
    assert desk.states() == dict.fromkeys(names, "COMPLETED")


# -- object stores --------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["s3", "gcs"])
def store(request: pytest.FixtureRequest) -> Iterator[StorageBackend]:
    serve = {"s3": seaweedfs, "gcs": gcs_server}[request.param]
    with serve() as url:
        prefix = uuid.uuid4().hex
        opened: StorageBackend = (
            S3Storage(s3_settings(url, prefix))
            if request.param == "s3"
            else GcsStorage(gcs_settings(url, prefix))
        )
        with contextlib.closing(opened):
            yield opened


def test_save_can_be_cancelled_during_upload(
    store: StorageBackend, database: Any, make_desk: Any
) -> None:
    desk = make_desk(database, store)
    reached = threading.Event()
    put_tree = store.put_tree

    class Watched:
        """Gives the save up when its first bytes have arrived."""

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def put_tree(self, pairs: Any, *, progress: Any) -> Any:
            def count(size: int) -> None:
                desk._save.stop()
                reached.set()
                progress(size)

            return put_tree(pairs, progress=count)

    desk._storage = Watched()
    name = desk.save_async(open_gate(os.urandom(40 << 20)), META)
    assert reached.wait(TIMEOUT_S)
    desk.cancel_save(TIMEOUT_S)
    assert desk.states() == {name: "DELETED"}
    assert desk.names(name) == []
