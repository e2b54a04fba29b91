"""Tests of table filters."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcore_server.pages.table_filter import FilterError, parse_filter

NAMES = {
    "loss": "best", "lr": "hparams.opt.lr", "opt.lr": "hparams.opt.lr", "optimizer": "hparams.opt",
    "state": "state", "is_big": "is_big", "my metric": "my", "and-or": "odd", "list": "list",
}  # fmt: skip
ROW = {
    "best": 0.25, "hparams.opt.lr": 1e-3, "hparams.opt": "adam", "state": "COMPLETED",
    "is_big": True, "my": -2, "odd": 3, "list": [1, 2],
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss < 0.3", True),
        ("loss < 0.25", False),
        ("loss <= .25", True),
        ("loss >= 25e-2 and lr > 1e-4", True),
        ("loss > 1 or opt.lr == 0.001", True),
        # `and` binds closer than `or`, and `not` closer than both.
        ("loss < 1 or loss < 1 and loss > 1", True),
        ("(loss < 1 or loss < 1) and loss > 1", False),
        ("not loss > 1 and loss < 1", True),
        ("not (loss > 1 or loss < 1)", False),
        ("not not loss < 1", True),
        ("0.1 < loss <= 0.25 < 1", True),
        ("0.1 < loss < 0.2", False),
        ("optimizer = 'adam'", True),
        ('optimizer != "sgd"', True),
        ("optimizer == adam or loss < 1", None),
        ("is_big == true and is_big != FALSE", True),
        ("`my metric` == -2", True),
        ("and-or == 3", True),
        ("LOSS < 1", None),
        ("loss < 1 AND NOT loss < 0", True),
        # Values of different types pass no comparison.
        ("optimizer < 1", False),
        ("optimizer > 1", False),
        ("list < 3", False),
        ("optimizer < 'b'", True),
        ("2 in list and 3 not in list", True),
        ("3 in list or not 2 in list", False),
        ("'da' in optimizer and 'x' not in optimizer", True),
        ("1 in optimizer or 1 in state or 'a' in is_big", False),
        ("list not 3", None),
        ("in in list", None),
    ],
)
def test_filter_selects_rows(text: str, expected: bool | None) -> None:
    if expected is None:
        with pytest.raises(FilterError):
            parse_filter(text, NAMES)
    else:
        assert parse_filter(text, NAMES)(ROW) is expected


@pytest.mark.parametrize("missing", [{}, {"best": None}, {"best": math.nan}])
def test_missing_value_passes_no_comparison(missing: dict[str, object]) -> None:
    for operator in ("<", ">", "==", "!="):
        assert not parse_filter(f"loss {operator} 1", NAMES)(missing)
    assert parse_filter("not loss < 1", NAMES)(missing)


@pytest.mark.parametrize(
    ("text", "position", "told"),
    [
        ("", 0, "expected a name, a number or a quoted string, found the end"),
        ("loss", 4, "expected a comparison: <, <=, >, >=, ==, !=, in or not in, found the end"),
        ("loss <", 6, "found the end"),
        ("loss < 1 lr > 2", 9, "expected 'and', 'or' or the end, found 'lr'"),
        ("loss < 1 and", 12, "found the end"),
        ("(loss < 1", 9, r"expected '\)', found the end"),
        ("loss < 1)", 8, r"found '\)'"),
        ("los < 1", 0, r"did you mean loss\? Columns:"),
        ("loss < 1 && lr > 2", 9, "found '&'"),
        ("__import__('os')", 0, "expected a column name"),
        ("loss < 'open", 7, 'found "\'"'),
        ("loss < 1e", 7, "found '1'"),
        ("and < 1", 0, "found 'and'"),
    ],
)
def test_filter_errors(text: str, position: int, told: str) -> None:
    with pytest.raises(FilterError, match=told) as caught:
        parse_filter(text, NAMES)
    assert f"character {position + 1} of" in str(caught.value)
    assert str(caught.value).endswith(f"\n{text}\n{' ' * position}^")


def test_filter_size_is_limited() -> None:
    with pytest.raises(FilterError, match="at most 30 nested brackets"):
        parse_filter("(" * 400 + "loss < 1", NAMES)
    with pytest.raises(FilterError, match="at most 1000 characters, found 1010"):
        parse_filter("loss < 1 and" * 84 + "xx", NAMES)


TOKENS = [
    "loss", "lr", "<", "==", "1", "'a'", "and", "or", "not", "in", "list", "(", ")",
    "`my metric`", "&", "true",
]  # fmt: skip


@given(st.lists(st.sampled_from(TOKENS), max_size=12).map(" ".join) | st.text(max_size=40))
def test_any_text_parses_or_raises_filter_error(text: str) -> None:
    with contextlib.suppress(FilterError):
        assert parse_filter(text, NAMES)(ROW) in (True, False)
