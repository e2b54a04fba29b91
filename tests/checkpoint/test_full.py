"""A disk that is full, for real."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from file_systems import mounted_disk

from detcore.checkpoint import list_committed, verify_checkpoint
from detcore.errors import StorageFullError
from detcore.records import Database
from detcore.storage import LocalStorage

MIB = 1 << 20
ROOM_BYTES = 8 * MIB
META = {"steps_completed": 1}


@pytest.fixture
def full_desk(tmp_path: Path, database: Database, make_desk: Any) -> Iterator[Any]:
    """A desk on a separate file system of 8 MiB."""
    with mounted_disk(tmp_path / "disk", size=str(ROOM_BYTES)) as folder:
        yield make_desk(database, LocalStorage(folder / "checkpoints"))


def upload(desk: Any, tmp_path: Path, size: int) -> str:
    source = tmp_path / f"source-{size}"
    source.mkdir(exist_ok=True)
    (source / "weights").write_bytes(os.urandom(size))
    return str(desk.upload(source, META))


def store(desk: Any, tmp_path: Path, size: int) -> str:
    with desk.store_path(META) as (path, uuid):
        (path / "weights").write_bytes(os.urandom(size))
    return str(uuid)


@pytest.mark.parametrize("save", [upload, store])
def test_full_disk_keeps_previous_checkpoint(
    full_desk: Any, tmp_path: Path, save: Callable[[Any, Path, int], str]
) -> None:
    first = save(full_desk, tmp_path, 5 * MIB)
    with pytest.raises(StorageFullError, match=r"(?i)\n.*earlier checkpoints") as e:
        save(full_desk, tmp_path, 5 * MIB)
    missing = e.value.missing_bytes
    assert missing is not None
    assert abs(missing - 2 * MIB) <= 64 << 10
    assert f" {missing} " in str(e.value)
    assert isinstance(e.value.__cause__, OSError)
    assert list_committed(full_desk.storage) == [first]
    assert verify_checkpoint(full_desk.storage, first) == []
    assert sorted(full_desk.states().values()) == ["COMPLETED", "DELETED"]
    assert [p.name for p in full_desk.storage.root.iterdir()] == [first]  # no half-done one
    with full_desk.restore_path(first) as path:
        assert (path / "weights").stat().st_size == 5 * MIB
    full_desk.delete(first)
    save(full_desk, tmp_path, 6 * MIB)


def test_full_disk_fails_first_checkpoint(full_desk: Any, tmp_path: Path) -> None:
    with pytest.raises(StorageFullError, match="at least 1 bytes are missing"):
        store(full_desk, tmp_path, 9 * MIB)
    with pytest.raises(StorageFullError, match=f"writing {9 * MIB} bytes needs") as caught:
        upload(full_desk, tmp_path, 9 * MIB)
    assert caught.value.missing_bytes is not None
    assert abs(caught.value.missing_bytes - MIB) <= 64 << 10


def test_full_disk_behind_other_error_is_explained(full_desk: Any) -> None:
    """Frameworks raise exceptions without an errno."""

    def save() -> None:
        with full_desk.store_path(META) as (path, _):
            with contextlib.suppress(OSError):
                (path / "weights").write_bytes(os.urandom(9 * MIB))
            raise RuntimeError("could not write the weights")

    with pytest.raises(StorageFullError, match=r"no (room|space) left") as caught:
        save()
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_error_with_free_space_is_unchanged(full_desk: Any) -> None:
    def save() -> None:
        with full_desk.store_path(META) as (path, _):
            (path / "weights").write_bytes(b"")
            raise RuntimeError("the model has no weights")

    with pytest.raises(RuntimeError, match="the model has no weights"):
        save()


def test_full_disk_fails_manifest(full_desk: Any) -> None:
    def save() -> None:
        with full_desk.store_path(META) as (path, _):
            fd = os.open(path / "weights", os.O_WRONLY | os.O_CREAT)
            with contextlib.suppress(OSError):
                while True:
                    os.write(fd, bytes(4096))
            os.close(fd)

    with pytest.raises(StorageFullError, match=r"writing .* bytes needs") as caught:
        save()
    assert caught.value.missing_bytes is not None
    assert caught.value.missing_bytes <= 4096
    assert full_desk.storage.list() == []
