"""A storage that fails on demand, for tests of code that uses a storage and for crash tests."""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NoReturn, TypeVar

from detcore.errors import StorageError, StorageFullError
from detcore.storage import (
    DEFAULT_ALGORITHM,
    Capabilities,
    Entry,
    FileDigest,
    Pair,
    Progress,
    StorageBackend,
)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class StorageFault:
    """A failure to inject, and the change at which it happens.

    Attributes:
        kind: ``"kill"``: the process is killed with SIGKILL. ``"raise"``: `error` is raised.
            ``"full"``: there is no room (`StorageFullError`). ``"truncate"``: half of the file is
            stored, and the call says that all is well. ``"slow"``: the call takes `delay_s` more.
        at: Number of the change, from 1, at which it happens; each file of `put_tree` and `delete`
            is one. 0: at every one.
        moment: When a kill or an error comes: before anything is done, with half of a file of
            `put_tree` stored (small files and deletions are done whole or not at all, so for them
            that is ``"before"``), or when all is done and only the answer is lost.
        is_lasting: Whether every later change fails as well, as in an outage.
        delay_s: For ``"slow"``; in seconds.
        error: For ``"raise"``; default: a `StorageError` that says which change it was.
    """

    kind: Literal["kill", "raise", "full", "truncate", "slow"]
    at: int = 0
    moment: Literal["before", "within", "after"] = "before"
    is_lasting: bool = False
    delay_s: float = 0.05
    error: Exception | None = None

    def is_due(self, number: int) -> bool:
        """Whether it happens at a change; numbers are counted from 1."""
        return self.at in (0, number) or (self.is_lasting and number > self.at)


class FaultyStorage:
    """A storage back end whose changes are counted, and fail as a `StorageFault` says.

    Reads are not counted: a process that stops at a read has changed nothing. `direct_path` is None
    for every key, so that every write goes through this class.

    Args:
        inner: The storage behind.
        fault: The failure to inject; None: changes are only counted.

    Attributes:
        changes: The changes so far, such as ``"put run/a"``, those that failed included.
    """

    def __init__(self, inner: StorageBackend, fault: StorageFault | None = None) -> None:
        self._inner = inner
        self._fault = fault
        self._lock = threading.Lock()
        self.changes: list[str] = []

    @property
    def url(self) -> str:
        """The inner storage's."""
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        """The inner storage's."""
        return self._inner.capabilities

    def direct_path(self, key: str) -> Path | None:
        """Return None, after the inner storage has checked the key."""
        self._inner.direct_path(key)
        return None

    def put_tree(
        self, pairs: Sequence[Pair], *, progress: Progress | None = None
    ) -> dict[str, FileDigest]:
        """Copy files to the inner storage, each one a change."""
        digests: dict[str, FileDigest] = {}
        for path, key in pairs:
            digests |= self._change(
                f"put {key}",
                functools.partial(self._inner.put_tree, [(path, key)], progress=progress),
                functools.partial(self._put_half, path, key),
                tears=True,
            )
        return digests

    def _put_half(self, path: Path, key: str) -> dict[str, FileDigest]:
        """Store half of a file; return the digest of all of it."""
        from detcore.storage import digest_file

        with tempfile.TemporaryDirectory(prefix="detcore-half-") as folder:
            half = Path(folder) / "half"
            data = path.read_bytes()
            half.write_bytes(data[: len(data) // 2])
            self._inner.put_tree([(half, key)])
        return {key: digest_file(path)}

    def get_tree(
        self,
        pairs: Sequence[Pair],
        *,
        algorithm: str = DEFAULT_ALGORITHM,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Copy files from the inner storage."""
        return self._inner.get_tree(pairs, algorithm=algorithm, progress=progress)

    def digest_tree(
        self,
        keys: Sequence[str],
        *,
        algorithm: str = DEFAULT_ALGORITHM,
        make_durable: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, FileDigest]:
        """Digest files of the inner storage."""
        return self._inner.digest_tree(
            keys, algorithm=algorithm, make_durable=make_durable, progress=progress
        )

    def create(self, key: str, data: bytes) -> None:
        """Create a small file, whole or not at all."""
        half = functools.partial(self._inner.create, key, data[: len(data) // 2])
        self._change(f"create {key}", functools.partial(self._inner.create, key, data), half)

    def replace(self, key: str, data: bytes) -> None:
        """Replace a small file, whole or not at all."""
        half = functools.partial(self._inner.replace, key, data[: len(data) // 2])
        self._change(f"replace {key}", functools.partial(self._inner.replace, key, data), half)

    def read(self, key: str) -> bytes:
        """Read from the inner storage."""
        return self._inner.read(key)

    def list(self, prefix: str = "") -> list[Entry]:
        """List the inner storage."""
        return self._inner.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files, each one a change."""
        for key in keys:
            self._change(f"delete {key}", functools.partial(self._inner.delete, [key]))

    def delete_tree(self, prefix: str) -> None:
        """Delete a tree, counting each file as a change, and then the rest of the tree."""
        if prefix:
            self.delete([entry.key for entry in self._inner.list(prefix)])
        self._change(f"delete {prefix}/", functools.partial(self._inner.delete_tree, prefix))

    def probe(self) -> None:
        """Probe the inner storage; not a change, because it leaves nothing."""
        self._inner.probe()

    def close(self) -> None:
        """Leave the inner storage open, so that a test can inspect the effects of the fault."""

    def _change(
        self,
        name: str,
        work: Callable[[], T],
        half: Callable[[], T] | None = None,
        *,
        tears: bool = False,
    ) -> T:
        """Make a change, or apply the fault to it.

        Args:
            name: Description of the change.
            work: Makes the change.
            half: Makes the change with half of the bytes.
            tears: Whether a kill in the middle may leave that half.
        """
        with self._lock:
            self.changes.append(name)
            number = len(self.changes)
        fault = self._fault
        if fault is None or not fault.is_due(number):
            return work()
        if fault.kind == "slow":
            time.sleep(fault.delay_s)
            return work()
        if fault.kind == "truncate":
            return work() if half is None else half()
        if fault.moment == "within" and half is not None and tears:
            half()
        elif fault.moment == "after":
            work()
        return self._fail(fault, f"change {number} ({name})")

    def _fail(self, fault: StorageFault, what: str) -> NoReturn:
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.kind == "full":
            cause = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise StorageFullError(
                f"no room left in {self.url}: {what} needs 1 byte more.\n"
                "A fault that a test has asked for.",
                missing_bytes=1,
            ) from cause
        raise fault.error or StorageError(
            f"{what} failed in {self.url}.\nA fault that a test has asked for."
        )


def changes_of(storage: StorageBackend, work: Callable[[StorageBackend], object]) -> list[str]:
    """Call `work` with a counting storage, and return the changes that it made, in order.

    So that a test can fail at each of them in turn:

    ```python
    names = changes_of(storage, save)
    for at in range(1, len(names) + 1):
        save(FaultyStorage(storage, StorageFault("raise", at=at)))
    ```

    Args:
        storage: The storage to change.
        work: Called with a storage that counts changes and passes them on to `storage`.
    """
    counted = FaultyStorage(storage)
    work(counted)
    return list(counted.changes)
