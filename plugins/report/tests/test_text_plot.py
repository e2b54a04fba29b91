"""Plots in the terminal."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded import Records
from terminal import on_a_terminal

from detcore.database import Database
from detcore_report._text_plot import draw_text_plot


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    home = tmp_path / "home"
    with Database.open(f"sqlite:///{home / 'detcore.db'}") as database:
        yield Records(home, database)


@pytest.mark.parametrize("command", ["describe", "plot"])
def test_a_trial_is_drawn_in_what_the_terminal_can_show(records: Records, command: str) -> None:
    trial = str(records.trained())
    shown = {}
    for encoding in ("utf-8", "ascii"):
        code, shown[encoding], _ = on_a_terminal(
            [sys.executable, "-m", "detcore", "trial", command, trial],
            variables={"DETCORE_HOME": str(records.home), "PYTHONIOENCODING": encoding},
            folder=records.home,
        )
        assert code == 0
    assert "┤" in shown["utf-8"]
    assert shown["ascii"].isascii()
    assert "*" in shown["ascii"]


def test_the_plot_is_ascii_where_nothing_else_can_be_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert "".join(draw_text_plot([(0, 1), (1, 2)], width=40)).isascii()


def test_a_plot_is_what_was_drawn_by_hand() -> None:
    assert draw_text_plot([(0, 1), (5, 0), (10, 1)], width=30, unicode=False) == [
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


def test_a_plot_of_one_value_is_a_line_with_that_value() -> None:
    (line,) = [
        text for text in draw_text_plot([(0, 2), (5, 2)], width=40, unicode=False) if "*" in text
    ]
    assert line.startswith("2 +*****")
    assert draw_text_plot([(3, 2)], width=40, unicode=False)[-1] == "   3"
    assert draw_text_plot([(3, math.nan)], width=40) == []


def test_a_plot_takes_any_finite_numbers() -> None:
    lines = draw_text_plot([(0, -1.7e308), (1, 1.7e308)], width=40, unicode=False)
    assert lines[0].startswith(" 1.7e+308 +")
    assert all(len(line) <= 40 for line in lines)
