"""Signals that request a process to save its work and exit."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import termios
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def find_stop_signals() -> tuple[signal.Signals, ...]:
    """Return SIGINT, SIGTERM, SIGUSR1 and, unless it is ignored (nohup), SIGHUP."""
    always = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return always if is_ignored else (*always, signal.SIGHUP)


@contextlib.contextmanager
def handle_signals(numbers: Iterable[int], handle: Callable[[int], object]) -> Iterator[None]:
    """Call a function with the number of each signal during a block, only in the main thread."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            before[number] = signal.signal(number, lambda received, _frame: handle(received))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_closed_terminal() -> None:
    """Send the output of this process to the null device if its terminal has been closed.

    Otherwise the next print after SIGHUP would fail, before the checkpoint is saved. Output to a
    pipe is also sent there, because its reader, such as ``tee``, exits with the terminal.
    """
    closed = [fd for fd in (0, 1, 2) if _is_closed_terminal(fd)]
    if not closed:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        if fd in closed or stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.dup2(null, fd)
    os.close(null)


def _is_closed_terminal(fd: int) -> bool:
    try:
        termios.tcgetattr(fd)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    return False
