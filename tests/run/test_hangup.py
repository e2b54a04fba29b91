"""A closed terminal: SIGHUP, and output that cannot be written any more."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import subprocess
import sys
import termios
import time
from collections.abc import Callable

import pytest
from toy_command import MODEL_DIR, Detcore

SCRIPT = """
import time
from pathlib import Path
from detcore import core

with core.init() as context:
    Path("started").touch()
    while not context.preempt.should_preempt():
        time.sleep(0.05)
    # Printing earlier could fail between the end of the terminal and the arrival of SIGHUP.
    print("asked to stop", flush=True)
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "state").write_text("saved")
raise SystemExit(75)
"""


class Terminal:
    """A shell command on a controlling terminal that can be closed; its exit code is in a file."""

    def __init__(self, detcore: Detcore, command: str, *, is_piped: bool) -> None:
        self._code = detcore.folder / "code"
        # The outer shell leads the session: when it ends, the system sends SIGHUP to the rest. The
        # inner shell survives, and the command starts with the default disposition.
        shell = f"trap : HUP; {command} 2>&1; echo $? > code.part; mv code.part code"
        self._leader, follower = pty.openpty()
        self._process = subprocess.Popen(
            ["sh", "-c", f"({shell}){' | tee log' if is_piped else ''}; true"],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            text=True,
            env=detcore.variables() | {"TERM": "xterm"},
            cwd=detcore.folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(follower)
        os.set_blocking(self._leader, False)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true, and read the output meanwhile."""
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline
            with contextlib.suppress(BlockingIOError, OSError):
                os.read(self._leader, 65536)
            time.sleep(0.05)

    def close(self) -> None:
        os.close(self._leader)
        self._leader = os.open(os.devnull, os.O_RDONLY)

    def wait(self) -> int:
        """Return the exit code of the command."""
        self.wait_until(self._code.exists)
        os.close(self._leader)
        self._process.wait(60)
        return int(self._code.read_text())


@pytest.fixture(params=["terminal", "tee"])
def is_piped(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "tee")


def test_run_checkpoints_when_terminal_closes(detcore: Detcore, is_piped: bool) -> None:
    config = detcore.config(
        hyperparameters=detcore.slow(pause_from=20), searcher__max_length__batches=1000
    )
    command = f"{sys.executable} -m detcore run {config} {MODEL_DIR}"
    terminal = Terminal(detcore, command, is_piped=is_piped)
    terminal.wait_until(lambda: len(detcore.committed()) == 2)
    terminal.close()
    assert terminal.wait() == 75
    assert len(detcore.committed()) == 3


def test_script_checkpoints_when_terminal_closes(detcore: Detcore, is_piped: bool) -> None:
    (detcore.folder / "train.py").write_text(SCRIPT)
    terminal = Terminal(detcore, f"{sys.executable} train.py", is_piped=is_piped)
    terminal.wait_until((detcore.folder / "started").exists)
    terminal.close()
    assert terminal.wait() == 75
    assert len(detcore.committed()) == 1


def test_nohup_survives_closed_terminal(detcore: Detcore) -> None:
    config = detcore.config(hyperparameters=detcore.slow(pause_from=20))
    command = f"nohup {sys.executable} -m detcore run {config} {MODEL_DIR}"
    terminal = Terminal(detcore, command, is_piped=False)
    terminal.wait_until(lambda: len(detcore.committed()) == 2)
    terminal.close()
    detcore.hurry()
    assert terminal.wait() == 0
