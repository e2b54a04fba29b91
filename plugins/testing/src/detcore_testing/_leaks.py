"""Threads, processes and environment variables that a test leaves behind."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from detcore.environment import change_environment, child_environment
from detcore_testing._processes import is_alive, kill, marked_processes

_T = TypeVar("_T")

MARK = "DETCORE_TESTING_TEST"
_POLL_S = 0.02
# pytest's own.
_IGNORED = ("PYTEST_CURRENT_TEST",)


class LeakGuard:
    """Compares this process before and after a test.

    Args:
        mark: Value of the variable ``DETCORE_TESTING_TEST`` during the test, by which processes
            that it started are found, however independent they made themselves.
        ignored: Patterns of what does not count: names of threads, command lines, names of
            variables.
        patience_s: How long threads and processes may take to end by themselves, in seconds.
    """

    def __init__(self, mark: str, *, ignored: Sequence[str] = (), patience_s: float = 3.0) -> None:
        self._mark = mark
        self._ignored = [*ignored, *_IGNORED]
        self._patience_s = patience_s
        self._threads = set(threading.enumerate())
        self._children = set(_descendants(os.getpid()))
        self._variables = child_environment({})
        change_environment({MARK: mark})

    def check(self) -> list[str]:
        """Return the leaks since this object was made, one line each; undo all but threads."""
        told = self._threads_left() + self._processes_left()
        before = {name: value for name, value in self._variables.items() if name != MARK}
        now = {name: value for name, value in child_environment({}).items() if name != MARK}
        told += self._variables_changed(before, now)
        change_environment(self._variables, without=set(child_environment({})) - set(before))
        return told

    def _threads_left(self) -> list[str]:
        def left() -> list[threading.Thread]:
            new = [thread for thread in threading.enumerate() if thread not in self._threads]
            return [thread for thread in new if thread.is_alive() and self._counts(thread.name)]

        return [f"the thread {thread.name!r} is still running" for thread in self._wait(left)]

    def _processes_left(self) -> list[str]:
        def left() -> Mapping[int, str]:
            own = {
                pid: line
                for pid, line in _descendants(os.getpid()).items()
                if pid not in self._children
            }
            found = {**own, **marked_processes(MARK, self._mark)}
            return {pid: line for pid, line in found.items() if self._counts(line)}

        processes = self._wait(left)
        kill(processes)
        for pid in processes:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        return [f"the process {pid} is still running: {line}" for pid, line in processes.items()]

    def _variables_changed(self, before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
        told = []
        for name in filter(self._counts, sorted(before.keys() | now.keys())):
            if name not in before:
                told.append(f"the variable {name} is set, to {now[name]!r}")
            elif name not in now:
                told.append(f"the variable {name} is gone; it was {before[name]!r}")
            elif now[name] != before[name]:
                told.append(f"the variable {name} is {now[name]!r}; it was {before[name]!r}")
        return told

    def _counts(self, name: str) -> bool:
        return not any(fnmatch.fnmatch(name, pattern) for pattern in self._ignored)

    def _wait(self, left: Callable[[], _T]) -> _T:
        deadline = time.monotonic() + self._patience_s
        while (found := left()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return found


def _descendants(parent: int) -> dict[int, str]:
    """Return the living processes below one, by id with their command lines."""
    parents: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if is_alive(folder):
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    line = b" ".join(words).decode("utf-8", "replace").strip()
                    parents[int(folder.name)] = (int(fields[1]), line)
    found: dict[int, str] = {}
    generation: Collection[int] = {parent}
    while generation:
        generation = {pid for pid, (above, _) in parents.items() if above in generation} - set(
            found
        )
        found |= {pid: parents[pid][1] for pid in generation}
    return found
