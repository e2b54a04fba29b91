"""Storages that fail when they are told to, and checkpoints that survive it."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import pytest

from detcore.checkpoint import CheckpointContext, list_committed, verify_checkpoint
from detcore.distributed import DistributedContext
from detcore.errors import CheckpointCorruptError, StorageError, StorageFullError
from detcore.storage import LocalStorage, StorageBackend
from detcore_testing import FaultyStorage, StorageFault, changes_of, run_forked

CONTENT = {"weights.bin": b"w" * 3000, "variables/a": b"a" * 50, "empty": b""}


@pytest.fixture
def inner(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "root")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name, data in CONTENT.items():
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "model"


def save(storage: StorageBackend, model: Path, steps: int) -> str:
    context = CheckpointContext(storage=storage, distributed=DistributedContext())
    with contextlib.closing(context):
        return context.upload(model, {"steps_completed": steps})


def save_in_place(storage: StorageBackend, steps: int) -> None:
    context = CheckpointContext(storage=storage, distributed=DistributedContext())
    with contextlib.closing(context), context.store_path({"steps_completed": steps}) as (path, _):
        for name, data in CONTENT.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_bytes(data)


def test_changes_are_counted_one_file_at_a_time(inner: LocalStorage, model: Path) -> None:
    def work(storage: StorageBackend) -> None:
        storage.put_tree([(model / "weights.bin", "run/w"), (model / "empty", "run/e")])
        storage.create("run/marker", b"1")
        storage.replace("run/marker", b"2")
        storage.read("run/marker")
        storage.list()
        storage.delete(["run/w"])
        storage.delete_tree("run")

    assert changes_of(inner, work) == [
        "put run/w", "put run/e", "create run/marker", "replace run/marker", "delete run/w",
        "delete run/e", "delete run/marker", "delete run/",
    ]  # fmt: skip
    assert inner.list() == []


def test_the_storage_fails_at_the_change_that_is_named_and_goes_on(inner: LocalStorage) -> None:
    storage = FaultyStorage(inner, StorageFault("raise", at=2))
    storage.replace("a", b"1")
    with pytest.raises(StorageError, match=r"change 2 \(replace b\) failed in file://"):
        storage.replace("b", b"2")
    storage.replace("c", b"3")
    assert [entry.key for entry in inner.list()] == ["a", "c"]


def test_an_outage_lasts_and_may_lose_the_answer_only(inner: LocalStorage) -> None:
    error = ConnectionResetError("reset")
    fault = StorageFault("raise", at=2, moment="after", is_lasting=True, error=error)
    storage = FaultyStorage(inner, fault)
    storage.create("a", b"1")
    for key in ("b", "c"):
        with pytest.raises(ConnectionResetError):
            storage.create(key, b"2")
    assert [entry.key for entry in inner.list()] == ["a", "b", "c"]


def test_a_full_disk_leaves_half_of_a_file(inner: LocalStorage, model: Path) -> None:
    storage = FaultyStorage(inner, StorageFault("full", at=1, moment="within"))
    with pytest.raises(StorageFullError, match="no room left") as caught:
        storage.put_tree([(model / "weights.bin", "run/w")])
    assert caught.value.missing_bytes == 1
    assert inner.read("run/w") == b"w" * 1500


def test_a_file_that_was_cut_without_a_word_is_not_committed(
    inner: LocalStorage, model: Path
) -> None:
    names = changes_of(inner, lambda storage: save(storage, model, 1))
    at = 1 + next(index for index, name in enumerate(names) if name.endswith("weights.bin"))
    committed = list_committed(inner)
    with pytest.raises(CheckpointCorruptError, match=r"weights\.bin has 1500 bytes"):
        save(FaultyStorage(inner, StorageFault("truncate", at=at)), model, 2)
    assert list_committed(inner) == committed


def test_a_slow_storage_takes_its_time(inner: LocalStorage) -> None:
    storage = FaultyStorage(inner, StorageFault("slow", delay_s=0.05))
    began = time.monotonic()
    for key in ("a", "b", "c"):
        storage.replace(key, b"1")
    assert time.monotonic() - began >= 0.15
    assert len(inner.list()) == 3


@pytest.mark.parametrize("moment", ["before", "within", "after"])
@pytest.mark.parametrize("way", ["upload", "store_path"])
def test_killed_at_every_write_the_checkpoint_before_is_whole(
    inner: LocalStorage, model: Path, moment: str, way: str
) -> None:
    def act(storage: StorageBackend) -> None:
        if way == "upload":
            save(storage, model, 2)
        else:
            save_in_place(storage, 2)

    first = save(inner, model, 1)
    names = changes_of(inner, act)
    assert len(names) >= 4
    committed = len(list_committed(inner))
    for at in range(1, len(names) + 1):
        fault = StorageFault("kill", at=at, moment=moment)  # type: ignore[arg-type]
        faulty = FaultyStorage(inner, fault)
        assert run_forked(lambda faulty=faulty: act(faulty)) == -signal.SIGKILL  # type: ignore[misc]
        found = list_committed(inner)
        assert first in found
        assert all(verify_checkpoint(inner, uuid) == [] for uuid in found)
        # Only the last write commits it.
        committed += at == len(names) and moment == "after"
        assert len(found) == committed
