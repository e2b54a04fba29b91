"""Files through which the runner and the tasks of a job exchange messages.

The runner and the nodes may share nothing but a network file system. Therefore each file has one
writer, which only appends lines or creates the file, and a reader opens a file each time it reads.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1 << 22
_PREFIX = "run-"
_CODE_OFFSET = 1000  # codes of killed processes are negative


class Tail:
    """Reads the JSON lines that are appended to a file.

    Args:
        path: The file, which may not exist yet.

    Attributes:
        offset: Number of bytes that were read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        self.offset = 0

    def read_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the complete lines since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self.offset + len(self._rest))
                data = self._rest + file.read(_CHUNK_BYTES)
        except FileNotFoundError:
            return
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            self.offset += len(line) + 1
            yield json.loads(line)


class Appender:
    """Appends JSON lines to a file; from any thread.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[bytes] = []
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def add_line(self, **fields: Any) -> None:
        """Add a line, which `flush` writes."""
        data = json.dumps(fields).encode() + b"\n"
        with self._lock:
            self._lines.append(data)

    def flush(self) -> None:
        """Write the added lines. A reader on another machine sees them when this returns."""
        with self._writing:
            with self._lock:
                data, self._lines = b"".join(self._lines), []
            if data:
                with self._path.open("ab") as file:  # closing sends it to the server of NFS
                    file.write(data)


class RunFolder:
    """The files of one run of a trial.

    Args:
        path: Its directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def find_newest(cls, job_dir: Path) -> RunFolder | None:
        """Return the newest run below the directory of a trial's jobs."""
        paths = [path for path in job_dir.glob(f"{_PREFIX}*") if (path / "start.json").exists()]
        newest = max(paths, key=lambda path: int(path.name.removeprefix(_PREFIX)), default=None)
        return None if newest is None else cls(newest)

    @classmethod
    def of_run(cls, job_dir: Path, run_id: int) -> RunFolder:
        """Return the folder of a run, which may not exist yet."""
        return cls(job_dir / f"{_PREFIX}{run_id}")

    def write_start(self, start: Mapping[str, Any]) -> None:
        """Write the data for the nodes. Only the owner may read it, because it contains secrets."""
        self.path.mkdir(parents=True, exist_ok=True)
        replace_file(self.path / "start.json", json.dumps(start, default=_to_json))

    def read_start(self) -> dict[str, Any]:
        """Read the result of `write_start`."""
        return _read_object(self.path / "start.json")

    def claim(self, claim: Mapping[str, Any]) -> bool:
        """Claim the run for a job; return False if a job has claimed it before."""
        temporary = self.path / f".claim-{os.getpid()}"
        temporary.write_text(json.dumps(claim))
        try:
            os.link(temporary, self.path / "claim.json")  # unlike O_EXCL, with its content
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def read_claim(self) -> dict[str, Any] | None:
        """Return the claim of a job, or None."""
        with contextlib.suppress(FileNotFoundError):
            return _read_object(self.path / "claim.json")
        return None

    @property
    def commands(self) -> Path:
        """The runner's commands to the tasks."""
        return self.path / "commands.jsonl"

    @property
    def signals(self) -> Path:
        """The signals that the batch script has received."""
        return self.path / "signals.jsonl"

    @property
    def heartbeat(self) -> Path:
        """A file whose content changes while the runner lives."""
        return self.path / "heartbeat"

    def find_rank_log(self, rank: int) -> Path:
        """Return the file with the output, events and exit code of a rank."""
        return self.path / f"rank-{rank}.jsonl"

    def write_value(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a small file atomically."""
        replace_file(self.path / f"{name}.json", json.dumps(value))

    def read_value(self, name: str) -> dict[str, Any] | None:
        """Return the content of a small file, or None."""
        with contextlib.suppress(FileNotFoundError):
            return _read_object(self.path / f"{name}.json")
        return None

    def list_ended(self) -> dict[int, int]:
        """Return the exit codes of the ranks that have ended."""
        names = [path.name.split("-")[1:] for path in self.path.glob("ended-*")]
        return {int(rank): int(code) - _CODE_OFFSET for rank, code in names}

    def mark_ended(self, rank: int, code: int) -> None:
        """Tell the other ranks that a rank has ended."""
        (self.path / f"ended-{rank}-{code + _CODE_OFFSET}").touch()


def replace_file(path: Path, text: str) -> None:
    """Create or replace a file that only its owner may read. Readers see the old or new text."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)


def _read_object(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def _to_json(value: object) -> Any:
    """Convert a value that JSON cannot represent."""
    to_list = getattr(value, "tolist", None)  # NumPy's
    if callable(to_list):
        return to_list()
    return dict(value) if isinstance(value, Mapping) else str(value)
