"""Kill process groups when the process that started them exits.

``detcore launch`` starts programs that may not use detcore. If it is killed, this small process,
which is run by its path, kills them. It reads commands from standard input: ``+PID`` watches the
group of a process, ``-PID`` forgets it, and ``=KEY`` sets the key of the job. At the end of the
input it kills all watched groups, and all processes that have the key in their environment: the
launcher may have been killed between the start of a worker and the command that names it.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def guard_processes(commands: IO[str]) -> None:
    """Read all commands, then kill the process groups that are still watched."""
    watched: set[int] = set()
    key = ""
    for line in commands:
        if line.startswith("="):
            key = line[1:].strip()
        elif line.startswith("+"):
            watched.add(int(line[1:]))
        else:
            watched.discard(int(line[1:]))
    for group in (*watched, *(_find_groups(key) if key else ())):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _find_groups(key: str) -> Iterator[int]:
    """Yield the process groups of a job; nothing on systems without ``/proc``."""
    variable = f"\0DETCORE_JOB_KEY={key}\0".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if variable in b"\0" + path.read_bytes():
                yield os.getpgid(int(path.parent.name))


if __name__ == "__main__":
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    guard_processes(sys.stdin)
