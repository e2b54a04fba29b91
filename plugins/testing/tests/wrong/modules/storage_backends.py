"""Storages with one fault each. ``broken`` names the broken clause.

Apart from its fault, each storage is a `LocalStorage`.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import os
import random
import shutil
import threading
import time
import unicodedata
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

from detcore.errors import StorageError
from detcore.storage import (
    Capabilities,
    Entry,
    FileDigest,
    LocalStorage,
    Pair,
    check_key,
    digest_bytes,
)
from detcore_testing import FolderAccess, StorageSuite

__all__ = ["WRONG", "make_suite"]

Digests = dict[str, FileDigest]
Pairs = Sequence[Pair]
_LONG = 16 << 20


class Wrong(LocalStorage):
    """Correct storage. Subclasses add one fault."""

    broken: ClassVar[str] = ""
    secret: ClassVar[str] = "hunter2"

    def path(self, key: str) -> Path:
        return self.root / key


class DropsEmptyFiles(Wrong):
    broken = "put-stores-source-content"

    def put_tree(self, pairs: Pairs, **options: Any) -> Digests:
        return super().put_tree([p for p in pairs if p[0].stat().st_size], **options)


class KeepsTheTail(Wrong):
    broken = "storage-behaves-like-a-dict"

    def put_tree(self, pairs: Pairs, **options: Any) -> Digests:
        old = {key: self.path(key).read_bytes() for _, key in pairs if self.path(key).is_file()}
        digests = super().put_tree(pairs, **options)
        for key, data in old.items():
            with open(self.path(key), "ab") as file:
                file.write(data[file.tell() :])
        return digests


class MovesItsSources(Wrong):
    broken = "put-stores-source-content"

    def put_tree(self, pairs: Pairs, **options: Any) -> Digests:
        digests = super().put_tree(pairs, **options)
        for path, _ in pairs:
            path.unlink()
        return digests


class TurnsLineEnds(Wrong):
    broken = "get-writes-stored-content"

    def get_tree(self, pairs: Pairs, **options: Any) -> Digests:
        digests = super().get_tree(pairs, **options)
        for path, _ in pairs:
            path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n"))
        return digests


class DigestsKeys(Wrong):
    broken = "storage-behaves-like-a-dict"

    def digest_tree(self, keys: Sequence[str], **options: Any) -> Digests:
        return {key: digest_bytes(key.encode()) for key in keys}


class RemembersDigests(Wrong):
    broken = "storage-behaves-like-a-dict"

    def put_tree(self, pairs: Pairs, **options: Any) -> Digests:
        self.seen = super().put_tree(pairs, **options)
        return self.seen

    def digest_tree(self, keys: Sequence[str], **options: Any) -> Digests:
        return {key: self.seen[key] for key in keys}


class CutsLargeFiles(Wrong):
    broken = "many-files-are-transferred"

    def put_tree(self, pairs: Pairs, **options: Any) -> Digests:
        digests = super().put_tree(pairs, **options)
        for _, key in pairs:
            os.truncate(self.path(key), min(_LONG, self.path(key).stat().st_size))
        return digests


class MixesManyFiles(Wrong):
    broken = "many-files-are-transferred"

    def get_tree(self, pairs: Pairs, **options: Any) -> Digests:
        digests = super().get_tree(pairs, **options)
        if len(pairs) > 100:
            shutil.copy(pairs[-1][0], pairs[-2][0])
        return digests


class EndsMarkersWithALine(Wrong):
    broken = "storage-behaves-like-a-dict"

    def create(self, key: str, data: bytes) -> None:
        super().create(key, data + b"\n")


class CreatesOver(Wrong):
    broken = "storage-behaves-like-a-dict"

    def create(self, key: str, data: bytes) -> None:
        self.replace(key, data)


class TakesEmptyForAbsent(Wrong):
    broken = "storage-behaves-like-a-dict"

    def create(self, key: str, data: bytes) -> None:
        if self.path(check_key(key)).exists() and not self.path(key).stat().st_size:
            self.path(key).unlink()
        super().create(key, data)


class Appends(Wrong):
    broken = "storage-behaves-like-a-dict"

    def replace(self, key: str, data: bytes) -> None:
        there = self.read(key) if self.path(check_key(key)).exists() else b""
        super().replace(key, there + data)


class TakesAbsentForEmpty(Wrong):
    broken = "missing-keys-are-errors"

    def read(self, key: str) -> bytes:
        try:
            return super().read(key)
        except FileNotFoundError:
            return b""


class LeavesOutAbsent(Wrong):
    broken = "missing-keys-are-errors"

    def digest_tree(self, keys: Sequence[str], **options: Any) -> Digests:
        return super().digest_tree([key for key in keys if self.path(key).exists()], **options)


class MakesTheFileFirst(Wrong):
    broken = "missing-keys-are-errors"

    def get_tree(self, pairs: Pairs, **options: Any) -> Digests:
        for path, key in pairs:
            check_key(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return super().get_tree(pairs, **options)


class CountsTwice(Wrong):
    broken = "progress-counts-bytes-once"

    def get_tree(self, pairs: Pairs, **options: Any) -> Digests:
        progress = options.pop("progress", None)
        digests = super().get_tree(pairs, progress=progress, **options)
        if progress is not None:
            progress(sum(digest.size for digest in digests.values()))
        return digests


class TellsOncePerFile(Wrong):
    broken = "progress-counts-bytes-once"

    def put_tree(self, pairs: Pairs, **options: Any) -> Digests:
        progress = options.pop("progress", None)
        digests = super().put_tree(pairs, **options)
        for digest in digests.values():
            if progress is not None:
                progress(digest.size)
        return digests


class ListsUnsorted(Wrong):
    broken = "storage-behaves-like-a-dict"

    def list(self, prefix: str = "") -> list[Entry]:
        return super().list(prefix)[::-1]


class ListsNoSizes(Wrong):
    broken = "storage-behaves-like-a-dict"

    def list(self, prefix: str = "") -> list[Entry]:
        return [Entry(entry.key, 0) for entry in super().list(prefix)]


class ListsByText(Wrong):
    broken = "storage-behaves-like-a-dict"

    def list(self, prefix: str = "") -> list[Entry]:
        return [entry for entry in super().list() if entry.key.startswith(prefix)]


class DeletesPatterns(Wrong):
    broken = "delete-is-literal"

    def delete(self, keys: Iterable[str]) -> None:
        patterns = [check_key(key) for key in keys]
        for entry in self.list():
            if any(fnmatch.fnmatchcase(entry.key, pattern) for pattern in patterns):
                super().delete([entry.key])


class ReadsKeysTwice(Wrong):
    """Iterates the keys twice, although a generator is then empty."""

    broken = "delete-is-literal"

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            check_key(key)
        super().delete(keys)


class MissesTheAbsent(Wrong):
    broken = "storage-behaves-like-a-dict"

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.path(check_key(key)).unlink()


class DeletesUntilOneIsAbsent(Wrong):
    broken = "storage-behaves-like-a-dict"

    def delete(self, keys: Iterable[str]) -> None:
        keys = [check_key(key) for key in keys]
        super().delete(itertools.takewhile(lambda key: self.path(key).exists(), keys))


class ListsBelowAFile(Wrong):
    broken = "storage-behaves-like-a-dict"

    def list(self, prefix: str = "") -> list[Entry]:
        if prefix:
            with contextlib.suppress(FileNotFoundError):
                os.stat(self.path(prefix))  # NotADirectoryError below a file
        return super().list(prefix)


class DeletesByText(Wrong):
    broken = "storage-behaves-like-a-dict"

    def delete_tree(self, prefix: str) -> None:
        check_key(prefix)
        self.delete([entry.key for entry in self.list() if entry.key.startswith(prefix)])


class DeletesItsRoot(Wrong):
    broken = "unsafe-keys-are-rejected"

    def delete_tree(self, prefix: str) -> None:
        if not prefix:
            shutil.rmtree(self.root, ignore_errors=True)
            return
        super().delete_tree(prefix)


class ReadsAnything(Wrong):
    broken = "unsafe-keys-are-rejected"

    def read(self, key: str) -> bytes:
        return (self.root / key).read_bytes()


class CleansKeys(Wrong):
    """Treats ``a//b`` as ``a/b``."""

    broken = "unsafe-keys-are-rejected"

    def replace(self, key: str, data: bytes) -> None:
        super().replace(os.path.normpath(key), data)


class DeletesUntilOneIsUnsafe(Wrong):
    broken = "unsafe-keys-stop-the-whole-call"

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            super().delete([key])


class DecodesKeys(Wrong):
    broken = "safe-keys-keep-their-content"

    def replace(self, key: str, data: bytes) -> None:
        super().replace(unquote(check_key(key)) if "%" in key else key, data)


class ListsOnce(Wrong):
    broken = "storage-behaves-like-a-dict"

    def list(self, prefix: str = "") -> list[Entry]:
        self._cache: dict[str, list[Entry]] = getattr(self, "_cache", {})
        if prefix not in self._cache:
            self._cache[prefix] = super().list(prefix)
        return self._cache[prefix]


class ReadsOnce(Wrong):
    broken = "storage-behaves-like-a-dict"

    def read(self, key: str) -> bytes:
        self._cache: dict[str, bytes] = getattr(self, "_cache", {})
        if key not in self._cache:
            self._cache[key] = super().read(key)
        return self._cache[key]


class ForgetsWhatItLacks(Wrong):
    """Caches that a location is empty."""

    broken = "storage-behaves-like-a-dict"

    def read(self, key: str) -> bytes:
        if getattr(self, "_was_empty", False):
            raise FileNotFoundError(key)
        return super().read(key)

    def list(self, prefix: str = "") -> list[Entry]:
        entries = super().list(prefix)
        self._was_empty = not prefix and not entries
        return entries


class LooksBeforeItCreates(Wrong):
    broken = "create-has-one-winning-thread"

    def create(self, key: str, data: bytes) -> None:
        if self.path(check_key(key)).exists():
            raise FileExistsError(key)
        time.sleep(0.02)
        self.replace(key, data)


class LocksItsThreadsOnly(LooksBeforeItCreates):
    broken = "create-has-one-winning-process"
    lock = threading.Lock()

    def create(self, key: str, data: bytes) -> None:
        with self.lock:
            super().create(key, data)


class ReplacesInPlace(Wrong):
    broken = "replace-is-atomic"

    def replace(self, key: str, data: bytes) -> None:
        path = self._locate(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb", buffering=0) as file:
            file.write(data[: len(data) // 2])
            time.sleep(0.005)
            file.write(data[len(data) // 2 :])


class KeepsOneCallInMind(Wrong):
    broken = "threads-can-share-storage"
    pairs: Pairs = ()

    def put_tree(self, pairs: Pairs, **options: Any) -> Digests:
        self.pairs = pairs
        time.sleep(0.01)
        return super().put_tree(self.pairs, **options)


class BelongsToOneProcess(Wrong):
    broken = "forked-children-can-use-storage"

    def __init__(self, root: Path | str) -> None:
        super().__init__(root)
        self._pid = os.getpid()

    def read(self, key: str) -> bytes:
        if os.getpid() != self._pid:
            raise StorageError("the connection belongs to another process")
        return super().read(key)


class ClosesOnce(Wrong):
    broken = "opening-writes-nothing"
    _is_closed = False

    def close(self) -> None:
        if self._is_closed:
            raise StorageError("it is closed already")
        self._is_closed = True


class LeavesFilesOpen(Wrong):
    broken = "process-state-is-unchanged"

    def read(self, key: str) -> bytes:
        data = super().read(key)
        self._left = [*getattr(self, "_left", []), open(self.path(key), "rb")]  # noqa: SIM115
        return data

    def close(self) -> None:
        for file in getattr(self, "_left", []):
            file.close()


class DrawsFromTheUsersGenerator(Wrong):
    broken = "process-state-is-unchanged"

    def put_tree(self, pairs: Pairs, **options: Any) -> Digests:
        time.sleep(random.random() / 1000)
        return super().put_tree(pairs, **options)


class PromisesLess(Wrong):
    broken = "capabilities-match-declined"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(atomic_create=True, fork_safe=True, byte_progress=True, durable=False)


class WritesWhenMade(Wrong):
    broken = "opening-writes-nothing"

    def __init__(self, root: Path | str) -> None:
        super().__init__(root)
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / ".owner").write_text("me")


class NumbersItsHandles(Wrong):
    broken = "url-is-stable"
    handles: ClassVar[list[int]] = []

    def __init__(self, root: Path | str) -> None:
        super().__init__(root)
        self.handles.append(1)
        self._number = len(self.handles)

    @property
    def url(self) -> str:
        return f"{super().url}#{self._number}"


class NamesTheFolderAbove(Wrong):
    broken = "url-reopens-storage"

    @property
    def url(self) -> str:
        return self.root.parent.as_uri()


class ShowsItsPassword(Wrong):
    broken = "secrets-are-not-shown"

    def read(self, key: str) -> bytes:
        try:
            return super().read(key)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error} (password={self.secret})") from error


class LeavesItsProbe(Wrong):
    broken = "probe-leaves-no-files"

    def probe(self) -> None:
        super().probe()
        self.replace(".probe", b"")


class ProbesNothing(Wrong):
    broken = "probe-detects-unusable-storage"

    def probe(self) -> None:
        """Report success."""


class RaisesWhatItGot(Wrong):
    broken = "probe-detects-unusable-storage"

    def replace(self, key: str, data: bytes) -> None:
        self.path(check_key(key)).parent.mkdir(parents=True, exist_ok=True)
        super().replace(key, data)


class PointsBesideItsFiles(Wrong):
    broken = "direct-path-locates-the-file"

    def direct_path(self, key: str) -> Path:
        return super().direct_path(f"files/{key}" if key else "")


class IsNotRegistered(Wrong):
    broken = "storage-is-registered"


class HidesManifests(Wrong):
    broken = "checkpoints-can-be-restored"

    def list(self, prefix: str = "") -> list[Entry]:
        return [entry for entry in super().list(prefix) if not entry.key.endswith("/manifest.json")]


class RemembersCreations(Wrong):
    """Rejects a deleted key in ``create``."""

    broken = "storage-behaves-like-a-dict"

    def create(self, key: str, data: bytes) -> None:
        self._created: set[str] = getattr(self, "_created", set())
        if key in self._created:
            raise FileExistsError(key)
        super().create(key, data)
        self._created.add(key)


class CommitsTooEarly(Wrong):
    """Keeps the manifest of a deleted failed save."""

    broken = "failed-saves-keep-old-checkpoint"

    def put_tree(self, pairs: Pairs, **options: Any) -> Digests:
        digests = super().put_tree(pairs, **options)
        for other in self.root.iterdir():
            if other.is_dir() and not pairs[0][1].startswith(other.name):
                (other / "none").write_bytes(b"x")
        return digests


class ListsOutside(Wrong):
    broken = "unsafe-keys-are-rejected"

    def list(self, prefix: str = "") -> list[Entry]:
        top = self.root / prefix
        return [Entry(p.name, p.stat().st_size) for p in top.rglob("*") if p.is_file()]


class KeepsWhatHasTheSize(Wrong):
    broken = "storage-behaves-like-a-dict"

    def put_tree(self, pairs: Pairs, **options: Any) -> Digests:
        def is_there(path: Path, key: str) -> bool:
            there = self.path(check_key(key))
            return there.is_file() and there.stat().st_size == path.stat().st_size

        skipped = [key for path, key in pairs if is_there(path, key)]
        digests = super().put_tree([pair for pair in pairs if pair[1] not in skipped], **options)
        return digests | self.digest_tree(skipped)


class SkipsAbsentSources(Wrong):
    broken = "missing-sources-are-errors"

    def put_tree(self, pairs: Pairs, **options: Any) -> Digests:
        return super().put_tree([pair for pair in pairs if pair[0].exists()], **options)


class WritesIntoWhatIsThere(Wrong):
    broken = "storage-behaves-like-a-dict"

    def get_tree(self, pairs: Pairs, **options: Any) -> Digests:
        tails = {path: path.read_bytes() for path, _ in pairs if path.is_file()}
        digests = super().get_tree(pairs, **options)
        for path, tail in tails.items():
            with open(path, "ab") as file:
                file.write(tail[file.tell() :])
        return digests


class ReadsText(Wrong):
    broken = "storage-behaves-like-a-dict"

    def read(self, key: str) -> bytes:
        return super().read(key).replace(b"\r\n", b"\n")


class TidiesUp(Wrong):
    """Deletes a directory that looks empty."""

    broken = "delete-is-literal"

    def delete(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        super().delete(keys)
        for folder in {self.path(key).parent for key in keys} - {self.root}:
            if not [path for path in folder.glob("*") if path.name[0] != "." and path.is_file()]:
                shutil.rmtree(folder, ignore_errors=True)


class FollowsLinks(Wrong):
    broken = "links-are-not-followed"

    def delete_tree(self, prefix: str) -> None:
        for folder, _, names in os.walk(self.path(check_key(prefix)), followlinks=True):
            for name in names:
                os.unlink(os.path.join(folder, name))


class ListsOnePage(Wrong):
    broken = "long-listings-are-complete"

    def list(self, prefix: str = "") -> list[Entry]:
        return super().list(prefix)[:1000]


class DeletesOnePage(Wrong):
    broken = "long-listings-are-complete"

    def delete_tree(self, prefix: str) -> None:
        self.delete([entry.key for entry in self.list(check_key(prefix))][:1000])


class NormalizesNames(Wrong):
    broken = "similar-keys-are-distinct"

    def put_tree(self, pairs: Pairs, **options: Any) -> Digests:
        names = {key: unicodedata.normalize("NFC", key) for _, key in pairs}
        digests = super().put_tree([(path, names[key]) for path, key in pairs], **options)
        return {key: digests[name] for key, name in names.items()}


class WorksInItsFolder(Wrong):
    broken = "process-state-is-unchanged"

    def create(self, key: str, data: bytes) -> None:
        super().create(key, data)
        os.chdir(self.root)


class KeepsAPool(Wrong):
    """Depends on a thread that does not exist in a forked child."""

    broken = "forked-children-can-use-storage"

    def __init__(self, root: Path | str) -> None:
        super().__init__(root)
        self.pool: ThreadPoolExecutor | None = None

    def read(self, key: str) -> bytes:
        self.pool = self.pool or ThreadPoolExecutor(1)
        return self.pool.submit(super().read, key).result(timeout=2)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()


class TakesTheNameFirst(Wrong):
    """Lets concurrent writers read an incomplete file."""

    broken = "create-has-one-winning-thread"

    def create(self, key: str, data: bytes) -> None:
        path = self.path(check_key(key))
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb", buffering=0) as file:
            for start in range(0, len(data), 1000):
                file.write(data[start : start + 1000])
                time.sleep(0.001)


WRONG: tuple[type[Wrong], ...] = tuple(
    value for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, Wrong) and value.broken
)  # fmt: skip


def make_suite(backend: type[Wrong]) -> type[StorageSuite]:
    """Return a suite for a storage."""

    class Suite(FolderAccess, StorageSuite):
        declined: ClassVar[dict[str, str]] = (
            {} if backend is IsNotRegistered else {"registered": "it is of no plugin"}
        )
        storage_type = "tape"
        secrets = (Wrong.secret,)

        def make_storage(self, tmp_path: Path) -> LocalStorage:
            self.root = tmp_path / "root"
            return backend(self.root)

        def make_settings(self, tmp_path: Path) -> dict[str, Any]:
            return {"root": str(self.root)}

        def make_unusable(self, tmp_path: Path) -> LocalStorage:
            (tmp_path / "file").write_text("in the way")
            return backend(tmp_path / "file" / "below")

    return Suite
