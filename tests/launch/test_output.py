"""Split the output of processes into lines."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcore.contract.launch import Line
from detcore.launch import local_launcher
from detcore.launch.output_lines import LineCutter


def cut(*pieces: bytes) -> list[bytes]:
    cutter = LineCutter()
    lines = [line for piece in pieces for line in cutter.feed(piece)] + list(cutter.finish())
    return [line.text for line in lines if line.is_final]


def test_lines_and_returns() -> None:
    assert cut(b"a\nb\r\n\nc") == [b"a", b"b", b"", b"c"]
    assert cut(b"a\r", b"\nb\n") == [b"a", b"b"]
    assert cut(b" 1%|#\r 2%|##\r 3%|###\n") == [b" 3%|###"]
    assert cut(b"\r 1%", b"\r 2%", b"\r 3%") == [b" 3%"]


def test_wiped_bar_leaves_no_line() -> None:
    assert cut(b"\r 1%|#", b"\r      ", b"\r", b"after\n") == [b"after"]
    assert cut(b"\r 1%|#", b"\r      \r\n") == []


def test_keras_bar_with_backspaces() -> None:
    first, second = b" 1/10 [>....]", b"10/10 [=====] - loss: 1"
    back = b"\b" * len(first)
    assert cut(first, back + b"\r" + second, b"\n") == [second]


def test_cursor_movements_are_removed() -> None:
    assert cut(b"\x1b[31mred\x1b[0m\x1b[K\x1b[A\x1b[?25l\n") == [b"\x1b[31mred\x1b[0m"]


def test_endless_line_uses_bounded_memory() -> None:
    lines = cut(*[b"x" * 65536] * 40)
    assert sum(map(len, lines)) == 40 * 65536
    assert max(map(len, lines)) < 2 << 20


@given(
    st.lists(st.text("ab\u00e9 ", max_size=5), min_size=1, max_size=6),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_lines_do_not_depend_on_pieces(lines: list[str], cuts: list[int]) -> None:
    data = "\n".join([*lines, ""]).encode()
    edges = [0, *sorted(min(at, len(data)) for at in cuts), len(data)]
    pieces = [data[low:high] for low, high in itertools.pairwise(edges)]
    assert cut(*pieces) == [line.encode() for line in lines]


@pytest.mark.parametrize(("interval_s", "num_states"), [(0.0, 3), (1e9, 0)])
def test_bar_states_are_limited_but_lines_are_not(
    monkeypatch: pytest.MonkeyPatch, interval_s: float, num_states: int
) -> None:
    monkeypatch.setattr(local_launcher, "_UPDATE_INTERVAL_S", interval_s)
    shown_states: list[tuple[int, str, str]] = []
    sink = local_launcher.LineSink(lambda *line: shown_states.append(line))
    states = [Line(b"%d/3" % number, is_final=False) for number in range(3)]
    for line in (*states, Line(b"\xff end", is_final=True)):
        sink(1, "stderr", line)
    assert shown_states == [
        *((1, "stderr", f"{number}/3") for number in range(num_states)),
        (1, "stderr", "\ufffd end"),
    ]
