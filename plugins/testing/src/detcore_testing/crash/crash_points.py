"""Storage and records that stop at a chosen operation, as if the process were killed."""

from __future__ import annotations

import dataclasses
import enum
import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from detcore.records import Database
    from detcore.storage import FileDigest, StorageBackend


T = TypeVar("T")

_TORN = ".detcore-tmp-torn"  # file that a kill within `create` leaves behind


class Crashed(BaseException):
    """Raised by every operation after the crash point."""


class Moment(str, enum.Enum):
    """Moment of a stop: before, in the middle of, or after an operation."""

    BEFORE = "before"
    WITHIN = "within"
    AFTER = "after"


@dataclasses.dataclass(frozen=True, slots=True)
class CrashPoint:
    """The point at which a process stops.

    Attributes:
        operation: Number of the operation, from 1.
        moment: Before, within or after it.
    """

    operation: int
    moment: Moment

    def __str__(self) -> str:
        return f"{self.moment.value} operation {self.operation}"


class Fuse:
    """Counts operations, and rejects all operations after the crash point.

    Args:
        point: The crash point, or None.
        stop_at: Prefix of an operation name. The fuse stops before the first such operation.

    Attributes:
        operations: Names of the started operations, and whether a stop within the operation leaves
            a partial state.
        is_dead: Whether the process has stopped.
    """

    def __init__(self, point: CrashPoint | None = None, *, stop_at: str | None = None) -> None:
        self._point = point
        self._stop_at = stop_at
        self._lock = threading.Lock()  # a save may run in the background
        self.is_dead = False
        self.operations: list[tuple[str, bool]] = []

    def run(
        self, name: str, operation: Callable[[], T], half: Callable[[], object] | None = None
    ) -> T:
        """Run an operation unless the process has stopped.

        Args:
            name: Name of the operation, for reports.
            operation: Function that runs the operation.
            half: Function that leaves the partial state of a kill. None if the operation is atomic.
        """
        with self._lock:
            if self.is_dead:
                raise Crashed
            self.operations.append((name, half is not None))
            point = self._point
            if self._stop_at is not None and name.startswith(self._stop_at):
                point = CrashPoint(len(self.operations), Moment.BEFORE)
            if point is None or point.operation != len(self.operations):
                return operation()
            self.is_dead = True
            if point.moment is Moment.AFTER:
                operation()
            elif point.moment is Moment.WITHIN and half is not None:
                half()
            raise Crashed


def tear(data: bytes, target: Path) -> None:
    """Write the first half of a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data[: len(data) // 2])


class CrashingStorage:
    """A storage back end whose changes go through a `Fuse`, one file at a time.

    Reads are not counted, because a stop there changes nothing.
    """

    def __init__(self, storage: StorageBackend, fuse: Fuse) -> None:
        self._storage = storage
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def put_tree(self, pairs: Sequence[tuple[Path, str]], **options: Any) -> dict[str, FileDigest]:
        """Copy files, each as a separate operation. A stop may leave half a file."""
        digests: dict[str, FileDigest] = {}
        for path, key in pairs:
            target = self._storage.direct_path(key)  # object stores never expose partial objects
            digests |= self._fuse.run(
                f"put {key}",
                functools.partial(self._storage.put_tree, [(path, key)], **options),
                None if target is None else functools.partial(_tear_copy, path, target),
            )
        return digests

    def digest_tree(self, keys: Sequence[str], **options: Any) -> dict[str, FileDigest]:
        """Digest files. Flushing the files to disk counts as one operation."""
        if not options.get("make_durable"):
            return self._storage.digest_tree(keys, **options)
        return self._fuse.run("seal", lambda: self._storage.digest_tree(keys, **options))

    def create(self, key: str, data: bytes) -> None:
        """Create a small file atomically."""
        self._fuse.run(
            f"create {key}", lambda: self._storage.create(key, data), self._tear_temporary(data)
        )

    def replace(self, key: str, data: bytes) -> None:
        """Replace a small file atomically."""
        self._fuse.run(
            f"replace {key}", lambda: self._storage.replace(key, data), self._tear_temporary(data)
        )

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files, each as a separate operation."""
        for key in keys:
            self._fuse.run(f"delete {key}", functools.partial(self._storage.delete, [key]))

    def delete_tree(self, prefix: str) -> None:
        """Delete a tree, each file as a separate operation."""
        self.delete(entry.key for entry in self._storage.list(prefix))
        self._fuse.run(f"delete {prefix}/", lambda: self._storage.delete_tree(prefix))

    def close(self) -> None:
        """Keep the wrapped storage open, because it is used after the crash."""

    def _tear_temporary(self, data: bytes) -> Callable[[], None] | None:
        """Return a function that leaves half a temporary file, or None for object stores."""
        target = self._storage.direct_path(_TORN)
        return None if target is None else functools.partial(tear, data, target)


def _tear_copy(path: Path, target: Path) -> None:
    tear(path.read_bytes(), target)


class CrashingDatabase:
    """Records whose checkpoint changes go through a `Fuse`."""

    def __init__(self, database: Database, fuse: Fuse) -> None:
        self._database = database
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def record_checkpoint(self, change: Any, **options: Any) -> Any:
        """Change a checkpoint's record."""
        record = functools.partial(self._database.record_checkpoint, change, **options)
        return self._fuse.run(f"record {change.KIND}", record)
