"""What every storage back end promises."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detcore.errors import StorageError, UnsafePathError
from detcore.storage import (
    Entry,
    FileDigest,
    FsspecStorage,
    LocalStorage,
    StorageBackend,
    check_key,
)


def pairs_of(folder: Path, prefix: str) -> list[tuple[Path, str]]:
    return [
        (path, f"{prefix}/{path.relative_to(folder).as_posix()}")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]


def test_what_was_put_comes_back_with_its_digest(
    storage: StorageBackend, folder: Path, tmp_path: Path
) -> None:
    pairs = pairs_of(folder, "one")
    put = storage.put_tree(pairs)
    for path, key in pairs:
        data = path.read_bytes()
        assert put[key] == FileDigest(len(data), xxhash.xxh3_128(data).hexdigest(), "xxh3_128")
    targets = [(tmp_path / "back" / str(index), key) for index, (_, key) in enumerate(pairs)]
    assert storage.get_tree(targets) == put
    assert storage.digest_tree([key for _, key in pairs], make_durable=True) == put
    for (path, _), (target, _) in zip(pairs, targets, strict=True):
        assert target.read_bytes() == path.read_bytes()


def test_progress_counts_every_byte_once(storage: StorageBackend, folder: Path) -> None:
    moved: list[int] = []
    pairs = pairs_of(folder, "one")
    storage.put_tree(pairs, progress=moved.append)
    assert sum(moved) == sum(path.stat().st_size for path, _ in pairs)


def test_listing_is_sorted_and_knows_nothing_of_neighbours(
    storage: StorageBackend, tmp_path: Path
) -> None:
    source = tmp_path / "file"
    source.write_bytes(b"abc")
    for key in ("run/2/x", "run/10/x", "run/1/b", "run/1/a/c", "run-1/a"):
        storage.put_tree([(source, key)])
    assert storage.list("run/1") == [Entry("run/1/a/c", 3), Entry("run/1/b", 3)]
    assert [entry.key for entry in storage.list()] == [
        "run-1/a", "run/1/a/c", "run/1/b", "run/10/x", "run/2/x",
    ]  # fmt: skip
    assert storage.list("absent") == []
    storage.delete_tree("run/1")
    assert [entry.key for entry in storage.list()] == ["run-1/a", "run/10/x", "run/2/x"]


def test_create_does_not_overwrite(storage: StorageBackend) -> None:
    storage.create("a/marker", b"first")
    with pytest.raises(FileExistsError, match="a/marker exists already"):
        storage.create("a/marker", b"second")
    assert storage.read("a/marker") == b"first"


def test_replace_overwrites(storage: StorageBackend) -> None:
    storage.replace("a/marker", b"a long first content")
    storage.replace("a/marker", b"second")
    assert storage.read("a/marker") == b"second"
    assert storage.list("a") == [Entry("a/marker", 6)]


def test_what_does_not_exist(storage: StorageBackend, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        storage.read("absent")
    with pytest.raises(FileNotFoundError):
        storage.get_tree([(tmp_path / "x", "absent")])
    with pytest.raises(FileNotFoundError):
        storage.digest_tree(["absent"])
    storage.delete(["absent", "absent/too"])
    storage.delete_tree("absent")


def test_deleting_takes_keys_literally(storage: StorageBackend, folder: Path) -> None:
    storage.put_tree([(folder / "large.bin", key) for key in ("r/1", "r/[1]", "r/*")])
    storage.delete(["r/[1]", "r/*"])
    assert [entry.key for entry in storage.list("r")] == ["r/1"]


def test_the_root_itself_is_never_deleted(storage: StorageBackend) -> None:
    with pytest.raises(UnsafePathError, match="it is empty"):
        storage.delete_tree("")


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "it is empty"),
        ("/etc/passwd", "it is absolute"),
        ("../x", r"'\.\.'"),
        ("a/../../x", r"'\.\.'"),
        ("a//b", "empty or '.' part"),
        ("./a", "empty or '.' part"),
        ("a/", "empty or '.' part"),
        ("a\0b", "NUL"),
        ("a\udcff", "UTF-8"),
        ("a\nb", "control character"),
        ("\x1b[2J", "control character"),
        ("a\x9b1m", "control character"),
        ("a" * 256, "255 bytes"),
        ("ü" * 128, "255 bytes"),
        ("/".join(["a" * 200] * 6), "1205 bytes"),
    ],
)
def test_unsafe_keys_are_refused_everywhere(
    storage: StorageBackend, tmp_path: Path, key: str, reason: str
) -> None:
    with pytest.raises(UnsafePathError, match=reason):
        check_key(key)
    source = tmp_path / "file"
    source.write_bytes(b"")
    calls: list[Callable[[], object]] = [
        lambda: storage.put_tree([(source, key)]),
        lambda: storage.get_tree([(tmp_path / "got", key)]),
        lambda: storage.digest_tree([key]),
        lambda: storage.create(key, b""),
        lambda: storage.replace(key, b""),
        lambda: storage.read(key),
        lambda: storage.delete([key]),
        lambda: storage.delete_tree(key),
    ]
    for call in calls:
        with pytest.raises(UnsafePathError, match=reason):
            call()
    assert not (tmp_path / "got").exists()


# SeaweedFS takes a backslash for a slash; that a save notices is tested with the servers.
SAFE = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="/\\"),
    min_size=1,
    max_size=8,
).filter(lambda name: name not in (".", ".."))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(parts=st.lists(SAFE, min_size=1, max_size=3), data=st.binary(max_size=50))
def test_any_safe_name_keeps_its_content(
    storage: StorageBackend, parts: list[str], data: bytes
) -> None:
    top = f"top-{uuid.uuid4()}"  # some stores keep the folders of files that are gone
    key = "/".join([top, *parts])
    storage.replace(key, data)
    assert storage.read(key) == data
    assert storage.list(top) == [Entry(key, len(data))]
    storage.delete([key])
    assert storage.list(top) == []


def test_probe_leaves_nothing(storage: StorageBackend) -> None:
    storage.probe()
    assert storage.list() == []


def test_probe_clears_away_what_killed_processes_left(tmp_path: Path) -> None:
    for storage, between in (
        (LocalStorage(tmp_path), "-"),
        (FsspecStorage(f"memory://{uuid.uuid4()}"), "/"),
    ):
        end = uuid.uuid4().hex
        storage.replace(f".detcore-probe{between}1700000000-1-0123456789ab-{end}", b"left")
        now = f".detcore-probe{between}{int(time.time())}-1-0123456789ab-{end}"
        storage.replace(now, b"of another machine")
        storage.probe()
        assert [entry.key for entry in storage.list()] == [now]


def test_probe_finds_a_storage_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"Not a directory.*\n.*read and write there"):
        LocalStorage(tmp_path / "file" / "below").probe()
