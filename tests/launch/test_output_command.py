"""Whole lines and readable progress bars of several workers."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios

from launch_command import LAUNCH, Launch

from detcore.launch._printer import Printer
from detcore.launch.nodes import Line

BAR = """
import os, sys, time
for i in range(200):
    sys.stderr.write(f"\\r{i:3}%|{'#' * (i // 5)}")
    sys.stderr.flush()
    if i % 50 == 10:
        print("line", i, flush=True)
    time.sleep(0.002)
sys.stderr.write("\\rdone    \\n")
"""


def test_a_log_gets_the_end_of_a_bar_and_the_lines_between(launch: Launch) -> None:
    finished = launch("-n", 2, "--", "python", launch.script(BAR))
    assert sorted(finished.stderr.splitlines()) == ["[rank=0] done    ", "[rank=1] done    "]
    assert finished.stdout.count("] line ") == 8
    assert "\r" not in finished.stdout + finished.stderr


def test_a_log_gets_a_state_of_a_long_bar_now_and_then() -> None:
    stdout, stderr = io.BytesIO(), io.BytesIO()
    printer = Printer(stdout, stderr, log_interval_s=0.0)
    printer(1, "stderr", Line(b"50%", is_final=False))
    assert stderr.getvalue() == b"[rank=1] 50%\n"


def test_on_a_terminal_one_bar_stays_below_whole_lines(launch: Launch) -> None:
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    process = subprocess.Popen(
        [*LAUNCH, "-n", "2", "--", "python", str(launch.script(BAR))],
        stdout=theirs,
        stderr=theirs,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
    )
    os.close(theirs)
    screen = b""
    try:
        while data := os.read(mine, 65536):
            screen += data
    except OSError:  # the other end is closed
        pass
    os.close(mine)
    assert process.wait(timeout=30) == 0
    shown = Screen()
    shown.write(screen.decode())
    assert sum("line" in line for line in shown.lines) == 8
    assert sum("done" in line for line in shown.lines) == 2
    assert all(line.startswith("[rank=") for line in shown.lines if line), shown.lines
    assert not any("%" in line for line in shown.lines), "a bar was left on the screen"
    assert b"%|##" in screen, "no bar was ever shown"


class Screen:
    """A terminal that knows what this needs: returns, line ends, and erasing to the end."""

    def __init__(self) -> None:
        self.lines = [""]
        self._column = 0

    def write(self, text: str) -> None:
        for part in text.replace("\x1b[K", "\x00"):
            if part == "\n":
                self.lines.append("")
                self._column = 0
            elif part == "\r":
                self._column = 0
            elif part == "\x00":
                self.lines[-1] = self.lines[-1][: self._column]
            else:
                line = self.lines[-1]
                self.lines[-1] = line[: self._column] + part + line[self._column + 1 :]
                self._column += 1
                assert self._column < 60, "a line wrapped around"


def test_the_help_of_the_command_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom detcore.cli import main\n"
        "try: main(['launch', '--help'])\nexcept SystemExit: pass\n"
        "print('HEAVY', sorted({'numpy', 'rich', 'pydantic', 'sqlalchemy'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "HEAVY []" in result.stdout
