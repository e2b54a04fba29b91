"""Test the capabilities of a store, rather than trusting its documentation."""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.errors import StorageError, in_one_line

if TYPE_CHECKING:
    from detcore.storage import Entry, StorageBackend


_RACERS = 8
_LARGE_BYTES = 24 << 20
_SMALL_FILES = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check.

    Attributes:
        name: Name of the check.
        is_ok: Whether the store passed.
        is_needed: Whether checkpoints require it.
        text: The observation, for users.
    """

    name: str
    is_ok: bool
    is_needed: bool
    text: str


def check_storage(storage: StorageBackend) -> Iterator[Finding]:
    """Write, read, list and delete below a new prefix, which is removed afterwards.

    Args:
        storage: The storage to check.

    Yields:
        The result of each check; the first failure of a required one ends the checks.
    """
    prefix = f".detcore-check-{uuid.uuid4().hex}"
    trials: list[tuple[str, bool, Callable[[StorageBackend, str], str]]] = [
        ("write and read", True, _write_and_read),
        ("list", True, _list),
        ("overwrite", True, _overwrite),
        ("names are taken literally", False, _names),
        ("conditional put", False, _create),
        ("conditional put, raced", False, _race),
        ("large file", True, _large),
        ("small files", True, _small),
        ("delete", True, _delete),
    ]
    has_written = False
    try:
        for name, is_needed, trial in trials:
            try:
                finding = Finding(name, True, is_needed, trial(storage, prefix))
            except _Shown as shown:
                finding = Finding(name, False, is_needed, str(shown))
            except (OSError, StorageError) as error:
                finding = Finding(name, False, is_needed, in_one_line(error))
            has_written = has_written or finding.is_ok
            yield finding
            if is_needed and not finding.is_ok:
                return
    finally:
        if has_written:
            storage.delete_tree(prefix)


class _Shown(Exception):
    """A store does not support an operation, or does it wrongly."""


def _write_and_read(storage: StorageBackend, prefix: str) -> str:
    data = uuid.uuid4().bytes
    start = time.perf_counter()
    storage.replace(f"{prefix}/a", data)
    if storage.read(f"{prefix}/a") != data:
        raise _Shown("the data read differs from the data written")
    return f"{(time.perf_counter() - start) * 1000:.0f} ms for both"


def _keys(entries: list[Entry], prefix: str) -> list[str]:
    return [entry.key[len(prefix) + 1 :] for entry in entries]


def _list(storage: StorageBackend, prefix: str) -> str:
    storage.replace(f"{prefix}/list/b", b"12")
    storage.replace(f"{prefix}/list-not/c", b"123")
    entries = storage.list(f"{prefix}/list")
    if _keys(entries, prefix) != ["list/b"] or entries[0].size != 2:
        raise _Shown(f"a new file of 2 bytes was listed as {entries}")
    return "new files are seen at once, with their sizes"


def _overwrite(storage: StorageBackend, prefix: str) -> str:
    for number in range(5):
        storage.replace(f"{prefix}/over", b"%d" % number)
        found = storage.read(f"{prefix}/over")
        if found != b"%d" % number:
            raise _Shown(f"an older content ({found!r}) was read after {number} was written")
    return "readers see the new content at once"


def _names(storage: StorageBackend, prefix: str) -> str:
    # As a pattern, the first name would match the second.
    names = ["[1]*?.bin", "10.bin", "a b+c%41#ü.bin", "back\\slash.bin"]
    kept = []
    for name in names:
        key = f"{prefix}/names/{name}"
        storage.replace(key, name.encode())
        is_there = _keys(storage.list(f"{prefix}/names"), f"{prefix}/names")
        kept.append(name in is_there and storage.read(key) == name.encode())
    changed = [name for name, is_kept in zip(names, kept, strict=True) if not is_kept]
    if changed:
        raise _Shown(f"changed: {', '.join(changed)}; saving files of such names will fail")
    storage.delete([f"{prefix}/names/[1]*?.bin"])
    if "10.bin" not in _keys(storage.list(f"{prefix}/names"), f"{prefix}/names"):
        raise _Shown("deleting '[1]*?.bin' deleted '10.bin'")
    return "also *?[] and non-ASCII ones"


def _create(storage: StorageBackend, prefix: str) -> str:
    key = f"{prefix}/marker"
    storage.create(key, b"first")
    try:
        storage.create(key, b"second")
    except FileExistsError:
        if storage.read(key) != b"first":
            raise _Shown("it was refused, and yet the content changed") from None
        return "a second writer of one key is refused"
    raise _Shown("ignored: a second writer of one key overwrites the first without a word")


def _race(storage: StorageBackend, prefix: str) -> str:
    key = f"{prefix}/race"

    def create(number: int) -> bool:
        try:
            storage.create(key, b"%d" % number)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(_RACERS) as pool:
        winners = [number for number, won in enumerate(pool.map(create, range(_RACERS))) if won]
    if len(winners) != 1:
        raise _Shown(
            f"{len(winners)} of {_RACERS} writers of one key at once believe that they won"
        )
    if storage.read(key) != b"%d" % winners[0]:
        raise _Shown("the content is not the winner's")
    return f"of {_RACERS} writers at once exactly one won"


def _transfer(storage: StorageBackend, prefix: str, sizes: list[int]) -> str:
    with tempfile.TemporaryDirectory(prefix="detcore-check-") as name:
        folder = Path(name)
        pairs = []
        for index, size in enumerate(sizes):
            path = folder / f"{index}"
            path.write_bytes(os.urandom(min(size, 1 << 20)) * max(1, size >> 20))
            pairs.append((path, f"{prefix}/{index}"))
        start = time.perf_counter()
        put = storage.put_tree(pairs)
        middle = time.perf_counter()
        got = storage.get_tree([(folder / "back" / key, key) for _, key in pairs])
        end = time.perf_counter()
    if put != got:
        raise _Shown("the data read differs from the data written")
    up, down = middle - start, end - middle
    if len(sizes) > 1:
        return f"{len(sizes) / up:.0f} files/s up, {len(sizes) / down:.0f} files/s down"
    return f"{sum(sizes) / up / 1e6:.0f} MB/s up, {sum(sizes) / down / 1e6:.0f} MB/s down"


_large = functools.partial(_transfer, sizes=[_LARGE_BYTES])
_small = functools.partial(_transfer, sizes=[16_384] * _SMALL_FILES)


def _delete(storage: StorageBackend, prefix: str) -> str:
    storage.replace(f"{prefix}/gone/x", b"")
    storage.replace(f"{prefix}/gone-not/x", b"")
    storage.delete_tree(f"{prefix}/gone")
    storage.delete([f"{prefix}/absent"])
    left = _keys(storage.list(prefix), prefix)
    if "gone/x" in left or "gone-not/x" not in left:
        raise _Shown("deleting a prefix left its files, or took a neighbour's")
    return "gone at once, and nothing else"
