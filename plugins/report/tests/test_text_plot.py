"""Plots in the terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded import Records
from terminal import on_a_terminal

from detcore.records import Database
from detcore_report import draw_text_plot


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    home = tmp_path / "home"
    with Database.open(f"sqlite:///{home / 'detcore.db'}") as database:
        yield Records(home, database)


@pytest.mark.parametrize("command", ["describe", "plot"])
def test_trial_plot_in_terminal(records: Records, command: str) -> None:
    code, output, _ = on_a_terminal(
        [sys.executable, "-m", "detcore", "trial", command, str(records.trained())],
        variables={"DETCORE_HOME": str(records.home), "PYTHONIOENCODING": "ascii"},
        folder=records.home,
    )
    assert code == 0
    assert "|   *" in output


def test_text_plot_equals_hand_drawn_plot() -> None:
    assert draw_text_plot([(0, 1), (5, 0), (10, 1)], width=30) == [
        "  1 +*                       *",
        "    | *                     *",
        "    |  **                 **",
        "    |    *               *",
        "0.5 +     **           **",
        "    |       *         *",
        "    |        *       *",
        "    |         *     *",
        "    |          ** **",
        "  0 +            *",
        "    +-------------------------",
        "     0                      10",
    ]


def test_text_plot_of_constant_value() -> None:
    (line,) = [text for text in draw_text_plot([(0, 2), (5, 2)], width=40) if "*" in text]
    assert line.startswith("2 +*****")
    assert draw_text_plot([(3, 2)], width=40)[-1] == "   3"
    assert draw_text_plot([(3, math.nan)], width=40) == []


def test_text_plot_accepts_any_finite_numbers() -> None:
    lines = draw_text_plot([(0, -1.7e308), (1, 1.7e308)], width=40)
    assert lines[0].startswith(" 1.7e+308 +")
    assert all(len(line) <= 40 for line in lines)
