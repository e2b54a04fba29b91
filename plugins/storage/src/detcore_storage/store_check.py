"""Test the capabilities of a store."""

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
    """Write, read, list and delete below a new prefix, which is deleted afterwards.

    Args:
        storage: The storage to check.

    Yields:
        The result of each check. The checks end at the first failed required check.
    """
    prefix = f".detcore-check-{uuid.uuid4().hex}"
    checks: list[tuple[str, bool, Callable[[StorageBackend, str], str]]] = [
        ("write and read", True, _check_round_trip),
        ("list", True, _check_listing),
        ("overwrite", True, _check_overwrite),
        ("names are taken literally", False, _check_names),
        ("conditional put", False, _check_create),
        ("conditional put, raced", False, _check_race),
        ("large file", True, _check_large_file),
        ("small files", True, _check_small_files),
        ("delete", True, _check_delete),
    ]
    has_written = False
    try:
        for name, is_needed, run_one in checks:
            try:
                finding = Finding(name, True, is_needed, run_one(storage, prefix))
            except _CheckFailedError as failure:
                finding = Finding(name, False, is_needed, str(failure))
            except (OSError, StorageError) as error:
                finding = Finding(name, False, is_needed, in_one_line(error))
            has_written = has_written or finding.is_ok
            yield finding
            if is_needed and not finding.is_ok:
                return
    finally:
        if has_written:
            storage.delete_tree(prefix)


class _CheckFailedError(Exception):
    """Raised when a store does not support an operation, or has a wrong result."""


def _check_round_trip(storage: StorageBackend, prefix: str) -> str:
    data = uuid.uuid4().bytes
    start = time.perf_counter()
    storage.replace(f"{prefix}/a", data)
    if storage.read(f"{prefix}/a") != data:
        raise _CheckFailedError("the data read differs from the data written")
    return f"{(time.perf_counter() - start) * 1000:.0f} ms for both"


def _strip_prefix(entries: list[Entry], prefix: str) -> list[str]:
    return [entry.key[len(prefix) + 1 :] for entry in entries]


def _check_listing(storage: StorageBackend, prefix: str) -> str:
    storage.replace(f"{prefix}/list/b", b"12")
    storage.replace(f"{prefix}/list-not/c", b"123")
    entries = storage.list(f"{prefix}/list")
    if _strip_prefix(entries, prefix) != ["list/b"] or entries[0].size != 2:
        raise _CheckFailedError(f"a new file of 2 bytes was listed as {entries}")
    return "new files are listed immediately, with their sizes"


def _check_overwrite(storage: StorageBackend, prefix: str) -> str:
    for number in range(5):
        storage.replace(f"{prefix}/over", b"%d" % number)
        content = storage.read(f"{prefix}/over")
        if content != b"%d" % number:
            raise _CheckFailedError(
                f"old content ({content!r}) was read after {number} was written"
            )
    return "readers see new content immediately"


def _check_names(storage: StorageBackend, prefix: str) -> str:
    # As a pattern, the first name would match the second.
    names = ["[1]*?.bin", "10.bin", "a b+c%41#ü.bin", "back\\slash.bin"]
    results = []
    for name in names:
        key = f"{prefix}/names/{name}"
        storage.replace(key, name.encode())
        is_listed = _strip_prefix(storage.list(f"{prefix}/names"), f"{prefix}/names")
        results.append(name in is_listed and storage.read(key) == name.encode())
    altered = [name for name, is_kept in zip(names, results, strict=True) if not is_kept]
    if altered:
        raise _CheckFailedError(
            f"changed: {', '.join(altered)}; files with such names cannot be saved"
        )
    storage.delete([f"{prefix}/names/[1]*?.bin"])
    if "10.bin" not in _strip_prefix(storage.list(f"{prefix}/names"), f"{prefix}/names"):
        raise _CheckFailedError("deleting '[1]*?.bin' deleted '10.bin'")
    return "including *?[] and non-ASCII names"


def _check_create(storage: StorageBackend, prefix: str) -> str:
    key = f"{prefix}/marker"
    storage.create(key, b"first")
    try:
        storage.create(key, b"second")
    except FileExistsError:
        if storage.read(key) != b"first":
            raise _CheckFailedError(
                "the second write was refused, but the content changed"
            ) from None
        return "a second writer of a key is refused"
    raise _CheckFailedError("ignored: a second writer of a key silently overwrites the first")


def _check_race(storage: StorageBackend, prefix: str) -> str:
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
        raise _CheckFailedError(
            f"{len(winners)} of {_RACERS} concurrent writers of a key succeeded"
        )
    if storage.read(key) != b"%d" % winners[0]:
        raise _CheckFailedError("the content is not the winner's")
    return f"exactly one of {_RACERS} concurrent writers succeeded"


def _measure_transfer(storage: StorageBackend, prefix: str, sizes: list[int]) -> str:
    with tempfile.TemporaryDirectory(prefix="detcore-check-") as name:
        folder = Path(name)
        pairs = []
        for index, size in enumerate(sizes):
            path = folder / f"{index}"
            path.write_bytes(os.urandom(min(size, 1 << 20)) * max(1, size >> 20))
            pairs.append((path, f"{prefix}/{index}"))
        start = time.perf_counter()
        written_digests = storage.put_tree(pairs)
        middle = time.perf_counter()
        read_digests = storage.get_tree([(folder / "back" / key, key) for _, key in pairs])
        end = time.perf_counter()
    if written_digests != read_digests:
        raise _CheckFailedError("the data read differs from the data written")
    upload_s, download_s = middle - start, end - middle
    if len(sizes) > 1:
        return f"{len(sizes) / upload_s:.0f} files/s up, {len(sizes) / download_s:.0f} files/s down"
    return (
        f"{sum(sizes) / upload_s / 1e6:.0f} MB/s up, {sum(sizes) / download_s / 1e6:.0f} MB/s down"
    )


_check_large_file = functools.partial(_measure_transfer, sizes=[_LARGE_BYTES])
_check_small_files = functools.partial(_measure_transfer, sizes=[16_384] * _SMALL_FILES)


def _check_delete(storage: StorageBackend, prefix: str) -> str:
    storage.replace(f"{prefix}/dead/x", b"")
    storage.replace(f"{prefix}/dead-not/x", b"")
    storage.delete_tree(f"{prefix}/dead")
    storage.delete([f"{prefix}/absent"])
    remaining = _strip_prefix(storage.list(prefix), prefix)
    if "dead/x" in remaining or "dead-not/x" not in remaining:
        raise _CheckFailedError(
            "deleting a prefix kept its files, or deleted files of a similar prefix"
        )
    return "deleted files disappear immediately, other files remain"
