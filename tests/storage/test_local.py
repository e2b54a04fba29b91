"""Durability, atomicity and path confinement of local storage."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from file_systems import mounted_disk
from processes import run_python

from detcore.errors import StorageError, StorageFullError, UnsafePathError
from detcore.storage import LocalStorage, digest_file, local_storage

ROOM_BYTES = 4 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 4 MiB, which fills up."""
    with mounted_disk(tmp_path / "disk", size=str(ROOM_BYTES)) as folder:
        yield folder


def test_full_disk_reports_missing_bytes(small_disk: Path, tmp_path: Path) -> None:
    sizes = [1 << 20, 5 << 20, 3 << 20]
    pairs = []
    for index, size in enumerate(sizes):
        path = tmp_path / f"file-{index}"
        path.write_bytes(os.urandom(size))
        pairs.append((path, f"run/{index}"))
    storage = LocalStorage(small_disk / "root")
    storage.probe()
    with pytest.raises(StorageFullError, match=f"writing {sum(sizes)} bytes needs") as caught:
        storage.put_tree(pairs)
    missing = caught.value.missing_bytes
    assert missing is not None
    assert f"{missing} more" in str(caught.value)
    # The directories use a few pages of the disk.
    assert abs(missing - (sum(sizes) - ROOM_BYTES)) <= 64 << 10
    storage.delete_tree("run")
    storage.put_tree(pairs[:1])


def test_file_size_limit_counts_as_full(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(os.urandom(3 << 20))
    code = f"""
import resource
from pathlib import Path
from detcore.errors import StorageFullError
from detcore.storage import LocalStorage
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    LocalStorage({str(tmp_path / "root")!r}).put_tree([(Path({str(tmp_path / "file")!r}), "a")])
except StorageFullError as error:
    print(error.missing_bytes)
"""
    assert int(run_python(code)) == 2 << 20


def test_symlink_cannot_escape_root(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("keep")
    storage = LocalStorage(tmp_path / "root")
    storage.replace("run/a", b"")
    (tmp_path / "root" / "link").symlink_to(outside)
    calls: list[Callable[[], object]] = [
        lambda: storage.read("link/secret"),
        lambda: storage.get_tree([(tmp_path / "got", "link/secret")]),
        lambda: storage.replace("link/new", b""),
        lambda: storage.create("link/new", b""),
        lambda: storage.delete(["link/secret"]),
        lambda: storage.put_tree([(outside / "secret", "link/copy")]),
        lambda: storage.direct_path("link/secret"),
    ]
    for call in calls:
        with pytest.raises(UnsafePathError, match=r"leads out of .*root"):
            call()
    storage.delete_tree("link")  # the link itself
    assert not (tmp_path / "root" / "link").is_symlink()
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_root_may_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    LocalStorage(tmp_path / "link").create("a", b"1")
    assert (tmp_path / "real" / "a").read_bytes() == b"1"


def test_relative_root_is_rejected() -> None:
    with pytest.raises(UnsafePathError, match="is not absolute"):
        LocalStorage("checkpoints")


def test_probe_removes_stale_markers(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    old, new = tmp_path / ".detcore-tmp-old", tmp_path / ".detcore-tmp-new"
    for path in (old, new):
        path.write_bytes(b"")
    os.utime(old, (0, 0))
    storage.probe()
    assert not old.exists()
    assert new.exists()  # another process may need it soon


def test_probe_removes_stale_probes_after_a_day(tmp_path: Path) -> None:
    root = tmp_path / "root"
    code = f"""
import os, signal
from detcore.storage import LocalStorage
LocalStorage.read = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
LocalStorage({str(root)!r}).probe()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    (remaining,) = root.iterdir()
    assert remaining.name.startswith(".detcore-probe-")
    other = root / f".detcore-probe-{int(time.time())}-{'0' * 32}"
    other.write_bytes(b"")  # another process may be writing it
    os.utime(remaining, (0, 0))
    LocalStorage(root).probe()
    assert list(root.iterdir()) == [other]


def test_files_are_flushed_before_the_marker(tmp_path: Path) -> None:
    """The system calls are recorded, because a power cut cannot be provoked."""
    root = tmp_path / "root"
    code = f"""
import os
import re
import signal
from pathlib import Path
from detcore.storage import LocalStorage

fsync, link = os.fsync, os.link

def watched_fsync(fd):
    fsync(fd)
    print("fsync", os.readlink(f"/proc/self/fd/{{fd}}"), flush=True)

def watched_link(source, target, **options):
    link(source, target, **options)
    print("link", target, flush=True)

os.fsync, os.link = watched_fsync, watched_link
storage = LocalStorage({str(root)!r})
storage.put_tree([(Path({__file__!r}), "run/sub/file")])
storage.create("run/marker", b"x")
"""
    calls = [line.split(" ", 1) for line in run_python(code).splitlines()]
    marker = next(index for index, (call, _) in enumerate(calls) if call == "link")
    before = [argument for call, argument in calls[:marker] if call == "fsync"]
    for path in (root / "run/sub/file", root / "run/sub", root / "run", root):
        assert str(path) in before, path
    after = [argument for call, argument in calls[marker:] if call == "fsync"]
    assert str(root / "run") in after


@pytest.fixture
def many(tmp_path: Path) -> list[tuple[Path, str]]:
    """A hundred small files and a large file."""
    folder = tmp_path / "many"
    folder.mkdir()
    pairs = []
    for index in range(101):
        path = folder / f"{index}"
        path.write_bytes(os.urandom(300_000 if index == 50 else 10 * index))
        pairs.append((path, f"run/{index % 7}/{index}"))
    return pairs


@pytest.mark.parametrize("seals", [False, True], ids=["put_tree", "digest_tree"])
def test_many_small_files_are_flushed(
    tmp_path: Path, many: list[tuple[Path, str]], monkeypatch: pytest.MonkeyPatch, seals: bool
) -> None:
    root = tmp_path / "root"
    storage = LocalStorage(root)
    keys = [key for _, key in many]
    expected = {key: digest_file(path) for path, key in many}
    if seals:
        storage.put_tree(many)
    synced: set[str] = set()
    fsync = os.fsync

    def watch(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", watch)
    finished = storage.digest_tree(keys, make_durable=True) if seals else storage.put_tree(many)
    assert finished == expected
    folders = [root, root / "run", *(root / f"run/{number}" for number in range(7))]
    assert synced == {str(path) for path in [*(root / key for key in keys), *folders]}


class BusyFolder:
    """Fakes ``shutil``, because a directory that NFS keeps busy cannot be provoked."""

    def __init__(self, errors: list[int]) -> None:
        self.errors = errors
        self.num_calls = 0

    def rmtree(self, path: Path) -> None:
        self.num_calls += 1
        if self.errors:
            raise OSError(self.errors.pop(0), "not now", str(path))
        path.rmdir()


@pytest.mark.parametrize(
    ("errors", "num_calls", "is_removed"),
    [
        ([], 1, True),
        ([errno.EBUSY, errno.ENOTEMPTY], 3, True),
        ([errno.EACCES], 1, False),
        ([errno.ENOTEMPTY] * 100, local_storage._REMOVE_ATTEMPTS, False),
    ],
)
def test_delete_tree_retries_when_busy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    errors: list[int],
    num_calls: int,
    is_removed: bool,
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    busy = BusyFolder(errors.copy())
    monkeypatch.setattr(local_storage, "shutil", busy)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with contextlib.nullcontext() if is_removed else pytest.raises(OSError, match="not now"):
        local_storage._remove_tree(folder)
    assert busy.num_calls == num_calls
    assert folder.exists() != is_removed


@pytest.mark.parametrize("place", ["dangling", "dangling/below", "/proc/nothing"])
def test_uncreatable_directory_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    storage = LocalStorage(tmp_path / place)
    with pytest.raises(
        StorageError, match=rf"(?s){place}.* cannot be created: .*Use another directory"
    ):
        storage.probe()
