"""Whole lines and readable progress bars."""

from __future__ import annotations

import fcntl
import io
import itertools
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch_command import LAUNCH, Launch

from detcore.contract.launch import Line
from detcore.launch import _local
from detcore.launch._command import Printer
from detcore.launch._lines import LineCutter

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


def cut(*pieces: bytes) -> list[bytes]:
    cutter = LineCutter()
    lines = [line for piece in pieces for line in cutter.feed(piece)] + list(cutter.finish())
    return [line.text for line in lines if line.is_final]


def test_lines_and_returns() -> None:
    assert cut(b"a\nb\r\n\nc") == [b"a", b"b", b"", b"c"]
    assert cut(b"a\r", b"\nb\n") == [b"a", b"b"]
    assert cut(b" 1%|#\r 2%|##\r 3%|###\n") == [b" 3%|###"]
    assert cut(b"\r 1%", b"\r 2%", b"\r 3%") == [b" 3%"]


def test_a_bar_that_is_wiped_leaves_nothing() -> None:
    assert cut(b"\r 1%|#", b"\r      ", b"\r", b"after\n") == [b"after"]
    assert cut(b"\r 1%|#", b"\r      \r\n") == []


def test_the_bar_of_keras_goes_back_with_backspaces() -> None:
    first, second = b" 1/10 [>....]", b"10/10 [=====] - loss: 1"
    back = b"\b" * len(first)
    assert cut(first, back + b"\r" + second, b"\n") == [second]


def test_movements_of_the_cursor_are_left_out_and_colours_kept() -> None:
    assert cut(b"\x1b[31mred\x1b[0m\x1b[K\x1b[A\x1b[?25l\n") == [b"\x1b[31mred\x1b[0m"]


def test_a_line_without_end_takes_bounded_memory() -> None:
    lines = cut(*[b"x" * 65536] * 40)
    assert sum(map(len, lines)) == 40 * 65536
    assert max(map(len, lines)) < 2 << 20


@given(
    st.lists(st.text("ab\u00e9 ", max_size=5), min_size=1, max_size=6),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_lines_do_not_depend_on_the_pieces(lines: list[str], cuts: list[int]) -> None:
    data = "\n".join([*lines, ""]).encode()
    edges = [0, *sorted(min(at, len(data)) for at in cuts), len(data)]
    pieces = [data[low:high] for low, high in itertools.pairwise(edges)]
    assert cut(*pieces) == [line.encode() for line in lines]


@pytest.mark.parametrize(("interval_s", "num_states"), [(0.0, 3), (1e9, 0)])
def test_states_of_a_bar_are_handed_on_now_and_then_and_lines_always(
    monkeypatch: pytest.MonkeyPatch, interval_s: float, num_states: int
) -> None:
    monkeypatch.setattr(_local, "_UPDATE_INTERVAL_S", interval_s)
    shown: list[tuple[int, str, str]] = []
    sink = _local.LineSink(lambda *line: shown.append(line))
    states = [Line(b"%d/3" % number, is_final=False) for number in range(3)]
    for line in (*states, Line(b"\xff end", is_final=True)):
        sink(1, "stderr", line)
    assert shown == [
        *((1, "stderr", f"{number}/3") for number in range(num_states)),
        (1, "stderr", "\ufffd end"),
    ]


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
