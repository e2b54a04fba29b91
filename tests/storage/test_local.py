"""What a folder promises beyond other storages: durability, atomicity, and walls."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from detcore.errors import StorageFullError, UnsafePathError
from detcore.storage import LocalStorage

ROOM_BYTES = 4 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB; a real one, so that it really fills up."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs", path],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("a file system can only be mounted as root")
    yield path
    subprocess.run(["umount", path], check=True)


def test_a_full_disk_says_how_many_bytes_are_missing(small_disk: Path, tmp_path: Path) -> None:
    sizes = [1 << 20, 5 << 20, 3 << 20]
    pairs = []
    for index, size in enumerate(sizes):
        path = tmp_path / f"file-{index}"
        path.write_bytes(os.urandom(size))
        pairs.append((path, f"run/{index}"))
    storage = LocalStorage(small_disk / "root")
    storage.probe()
    with pytest.raises(StorageFullError, match=f"{sum(sizes)} bytes were to be written") as caught:
        storage.put_tree(pairs)
    missing = caught.value.missing_bytes
    assert missing is not None
    assert f"{missing} bytes are missing" in str(caught.value)
    # The folders themselves take a few pages of the disk.
    assert abs(missing - (sum(sizes) - ROOM_BYTES)) <= 64 << 10
    storage.delete_tree("run")
    storage.put_tree(pairs[:1])


def test_a_file_size_limit_counts_as_full(tmp_path: Path) -> None:
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 2 << 20


def test_a_link_in_the_root_does_not_lead_out(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("keep")
    storage = LocalStorage(tmp_path / "root")
    storage.replace("run/a", b"")
    (tmp_path / "root" / "link").symlink_to(outside)
    calls: list[Callable[[], object]] = [
        lambda: storage.read("link/secret"),
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


def test_the_root_itself_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    LocalStorage(tmp_path / "link").create("a", b"1")
    assert (tmp_path / "real" / "a").read_bytes() == b"1"


def test_a_relative_root_is_refused() -> None:
    with pytest.raises(UnsafePathError, match="is not absolute"):
        LocalStorage("checkpoints")


def _race(root: str, number: int, barrier: Any, winners: Any) -> None:
    barrier.wait()
    try:
        LocalStorage(root).create("run/marker", str(number).encode() * 1000)
    except FileExistsError:
        return
    winners.put(number)


def test_of_eight_processes_one_creates(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        root = str(tmp_path / str(attempt))
        barrier, winners = context.Barrier(8), context.Queue()
        processes = [
            context.Process(target=_race, args=(root, number, barrier, winners))
            for number in range(8)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        winner = winners.get(timeout=5)
        assert winners.empty()
        assert LocalStorage(root).read("run/marker") == str(winner).encode() * 1000


def test_readers_of_a_replaced_file_see_one_content_or_the_other(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    contents = [b"a" * 100_000, b"b" * 90_000]
    storage.replace("f", contents[0])
    pid = os.fork()
    if pid == 0:
        for turn in range(60):
            storage.replace("f", contents[turn % 2])
        os._exit(0)
    seen = set()
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        seen.add(storage.read("f"))
    assert seen <= set(contents)


def test_what_a_killed_process_left_of_a_marker_is_cleared_away(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    old, new = tmp_path / ".detcore-tmp-old", tmp_path / ".detcore-tmp-new"
    for path in (old, new):
        path.write_bytes(b"")
    os.utime(old, (0, 0))
    storage.probe()
    assert not old.exists()
    assert new.exists()  # another process may be about to use it


def test_files_and_folders_are_brought_to_the_disk_before_the_marker(tmp_path: Path) -> None:
    """The calls are watched on their way to the system, because a power cut cannot be provoked."""
    root = tmp_path / "root"
    code = f"""
import os
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
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    calls = [line.split(" ", 1) for line in done.stdout.splitlines()]
    marker = next(index for index, (call, _) in enumerate(calls) if call == "link")
    before = [argument for call, argument in calls[:marker] if call == "fsync"]
    for path in (root / "run/sub/file", root / "run/sub", root / "run", root):
        assert str(path) in before, path
    after = [argument for call, argument in calls[marker:] if call == "fsync"]
    assert str(root / "run") in after
