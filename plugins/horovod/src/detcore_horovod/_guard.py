"""Kills process groups when the process that started them is gone.

``detcore launch`` starts programs that know nothing of detcore; if it is killed itself, this small
process, run by its path, is what ends them. Commands come on standard input: ``+PID`` watches the
group of a process, ``-PID`` forgets it; at the end of the input all watched groups are killed.
"""

import contextlib
import os
import signal
import sys
from typing import IO

__all__ = ["watch"]


def watch(commands: IO[str]) -> None:
    """Follow the commands to their end, then kill the process groups that are still watched."""
    watched: set[int] = set()
    for line in commands:
        pid = int(line[1:])
        if line.startswith("+"):
            watched.add(pid)
        else:
            watched.discard(pid)
    for pid in watched:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    watch(sys.stdin)
