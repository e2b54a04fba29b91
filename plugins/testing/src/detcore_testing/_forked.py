"""Functions that run in forked processes, which a test may let die."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable

_FAILED = 3


def forked(function: Callable[[], int | None]) -> int:
    """Start a function in a forked child; return its process id.

    The child ends with the code that the function returns (None: 0), or with 3 if it raises.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python warns if the process has threads; the child runs nothing but the function.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = _FAILED
    try:
        code = function() or 0
    except BaseException:  # noqa: BLE001  (the end of the process: printed, never dropped)
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def wait_for_child(pid: int, timeout_s: float = 60.0) -> int:
    """Wait for a forked child; return its exit code, negative where a signal killed it.

    Raises:
        TimeoutError: If it did not end in time; it is killed.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise TimeoutError(f"the forked process {pid} did not end within {timeout_s:g} s")
        time.sleep(0.002)


def run_forked(function: Callable[[], int | None], timeout_s: float = 60.0) -> int:
    """Run a function in a forked child to its end; return the exit code."""
    return wait_for_child(forked(function), timeout_s)
