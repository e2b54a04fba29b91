"""A storage and records that a process stops using at a chosen operation, as if it were killed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from detcore.database import Database
    from detcore.storage import Capabilities, Entry, FileDigest, StorageBackend

__all__ = ["CrashPoint", "Crashed", "CrashingDatabase", "CrashingStorage", "Fuse"]

T = TypeVar("T")

_RECORDED = frozenset(
    f"checkpoint_{what}" for what in ("started", "committed", "deleting", "deleted")
)


class Crashed(BaseException):
    """The process is gone; whatever it still tries has no effect."""


@dataclasses.dataclass(frozen=True, slots=True)
class CrashPoint:
    """Where a process stops.

    Attributes:
        operation: The number of the operation, from 1.
        is_done: Whether that operation still took effect, and only its answer was lost; else it was
            not begun, or left half done where a storage can.
    """

    operation: int
    is_done: bool

    def __str__(self) -> str:
        return f"{'after' if self.is_done else 'before'} operation {self.operation}"


class Fuse:
    """Counts operations, and lets none through from the crash point on.

    Args:
        point: Where to stop; None = nowhere.
    """

    def __init__(self, point: CrashPoint | None = None) -> None:
        self._point = point
        self._is_dead = False
        self.names: list[str] = []

    def run(
        self, name: str, operation: Callable[[], T], half: Callable[[], object] | None = None
    ) -> T:
        """Do an operation, unless the process is gone by now.

        Args:
            name: What it is, for reports.
            operation: Does it.
            half: Does a part of it, where that can happen: what a kill in the middle leaves.
        """
        if self._is_dead:
            raise Crashed
        self.names.append(name)
        point = self._point
        if point is None or point.operation != len(self.names):
            return operation()
        self._is_dead = True
        if point.is_done:
            operation()
        elif half is not None:
            half()
        raise Crashed


class CrashingStorage:
    """A storage back end whose changes go through a `Fuse`, one file at a time.

    Reading is not counted: a process that stops there changed nothing.
    """

    def __init__(self, storage: StorageBackend, fuse: Fuse) -> None:
        self._storage = storage
        self._fuse = fuse

    @property
    def url(self) -> str:
        """The wrapped storage's."""
        return self._storage.url

    @property
    def capabilities(self) -> Capabilities:
        """The wrapped storage's."""
        return self._storage.capabilities

    def direct_path(self, key: str) -> Path | None:
        """Return the wrapped storage's path; what is written there is not counted."""
        return self._storage.direct_path(key)

    def put_tree(self, pairs: Sequence[tuple[Path, str]], **options: Any) -> dict[str, FileDigest]:
        """Copy files, each one an operation of its own; a stop may leave half a file."""
        digests: dict[str, FileDigest] = {}
        for path, key in pairs:
            digests |= self._fuse.run(
                f"put {key}",
                functools.partial(self._storage.put_tree, [(path, key)], **options),
                functools.partial(self._tear, path, key),
            )
        return digests

    def get_tree(self, pairs: Sequence[tuple[Path, str]], **options: Any) -> dict[str, FileDigest]:
        """Copy files from the wrapped storage."""
        return self._storage.get_tree(pairs, **options)

    def digest_tree(self, keys: Sequence[str], **options: Any) -> dict[str, FileDigest]:
        """Digest files; bringing them to the disk counts as one operation."""
        return self._fuse.run("seal", lambda: self._storage.digest_tree(keys, **options))

    def create(self, key: str, data: bytes) -> None:
        """Create a small file; whole or not at all."""
        self._fuse.run(f"create {key}", lambda: self._storage.create(key, data))

    def replace(self, key: str, data: bytes) -> None:
        """Replace a small file; whole or not at all."""
        self._fuse.run(f"replace {key}", lambda: self._storage.replace(key, data))

    def read(self, key: str) -> bytes:
        """Read from the wrapped storage."""
        return self._storage.read(key)

    def list(self, prefix: str = "") -> list[Entry]:
        """List the wrapped storage."""
        return self._storage.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files, each one an operation of its own."""
        for key in keys:
            self._fuse.run(f"delete {key}", functools.partial(self._storage.delete, [key]))

    def delete_tree(self, prefix: str) -> None:
        """Delete a tree, each file an operation of its own."""
        self.delete(entry.key for entry in self._storage.list(prefix))
        self._fuse.run(f"delete {prefix}/", lambda: self._storage.delete_tree(prefix))

    def probe(self) -> None:
        """Probe the wrapped storage."""
        self._storage.probe()

    def close(self) -> None:
        """Leave the wrapped storage open: it is used again after the crash."""

    def _tear(self, path: Path, key: str) -> None:
        """Leave half a file where files are written in place; object stores have none."""
        target = self._storage.direct_path(key)
        if target is not None:
            data = path.read_bytes()
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data[: len(data) // 2])


class CrashingDatabase:
    """Records whose changes of checkpoints go through a `Fuse`."""

    def __init__(self, database: Database, fuse: Fuse) -> None:
        self._database = database
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._database, name)
        if name not in _RECORDED:
            return method

        def run(*arguments: Any, **options: Any) -> Any:
            return self._fuse.run(f"record {name}", lambda: method(*arguments, **options))

        return run
