"""Tests that the test setup does not depend on how pytest was started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from source_tree import ROOT

# Shows the state that a test's subprocess has inherited.
PROGRAM = """
import signal
ignored = {each for each in signal.valid_signals() if signal.getsignal(each) is signal.SIG_IGN}
print(ignored == {signal.SIGPIPE, signal.SIGXFSZ})
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
INNER_TEST = f"""
import signal, subprocess, sys
def test_closed_context():  # which ignores the second SIGHUP of a closed terminal
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
def test_inherited():
    print(subprocess.check_output([sys.executable, "-c", {PROGRAM!r}], text=True))
"""


# The process is kept alive in a cycle, like an object in a traceback.
LEAK = """
import gc, subprocess, sys
def test_that_fails():
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.itself = process
    assert False
def test_next(): gc.collect()
def test_last(): gc.collect()
"""


def run_pytest(source: str, tmp_path: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "test_inner.py"
    path.write_text(source)
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-W", "error", "-p", "conftest"]
    return subprocess.run(
        [*command, str(path)], cwd=ROOT, capture_output=True, text=True, **options
    )


def ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def test_processes_inherit_no_ignored_signals(tmp_path: Path) -> None:
    finished = run_pytest(INNER_TEST, tmp_path, preexec_fn=ignore_signals)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "True\nTrue\nset()\n" in finished.stdout


def test_leak_of_failed_test_fails_no_other_test(tmp_path: Path) -> None:
    finished = run_pytest(LEAK, tmp_path)
    assert "1 failed, 2 passed" in finished.stdout
