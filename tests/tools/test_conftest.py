"""Tests start their processes alike, however the test run itself was started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from source_tree import ROOT

# Shows what a program that a test starts has inherited.
PROGRAM = """
import signal
ignored = {each for each in signal.valid_signals() if signal.getsignal(each) is signal.SIG_IGN}
print(ignored == {signal.SIGPIPE, signal.SIGXFSZ})
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
INNER_TEST = f"""
import subprocess, sys
def test_inherited():
    print(subprocess.check_output([sys.executable, "-c", {PROGRAM!r}], text=True))
"""


def ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def test_processes_inherit_no_ignored_signals(tmp_path: Path) -> None:
    path = tmp_path / "test_inner.py"
    path.write_text(INNER_TEST)
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "conftest", "-n", "0", path]
    finished = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, preexec_fn=ignore_signals
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "True\nTrue\nset()\n" in finished.stdout
