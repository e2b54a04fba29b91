"""What the runner answers to a worker."""

from __future__ import annotations

import json
import os
from typing import Any

from detcore.core._events import is_pipe
from detcore.errors import WorkerError

__all__ = ["Replies", "open_replies"]

_READ_BYTES = 1 << 12


class Replies:
    """Reads the runner's answers: JSON objects, one a line.

    Args:
        fd: Reading end of a pipe; not closed, because the number belongs to whoever started this
            process.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = b""
        os.set_inheritable(fd, False)

    def wait(self) -> dict[str, Any]:
        """Wait for the next answer.

        Raises:
            WorkerError: If the runner is gone.
        """
        while b"\n" not in self._buffer:
            data = os.read(self._fd, _READ_BYTES)
            if not data:
                raise WorkerError(
                    "the runner of this trial is gone, so nobody can tell how far to train.\n"
                    "Go on later: detcore run --resume ID"
                )
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


def open_replies(fd: int | None) -> Replies | None:
    """Return what reads the runner's answers, or None where there is no such pipe."""
    return Replies(fd) if fd is not None and is_pipe(fd) else None
