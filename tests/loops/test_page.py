"""The page and the scripts say the same."""

from __future__ import annotations

import ast

import pytest
from loop_diffs import LOOPS_PAGE, diff_of, with_diffs
from loop_runs import CORE_API, LOOPS


def test_the_page_shows_the_diffs_as_they_are() -> None:
    page = LOOPS_PAGE.read_text()
    assert with_diffs(page) == page, "write it anew: python tests/support/loop_diffs.py"
    for loop in LOOPS:
        assert diff_of(loop) in page


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_is_less_than_a_hundred_lines(loop: str) -> None:
    assert len((CORE_API / f"{loop}.py").read_text().splitlines()) < 100


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_pickles_nothing(loop: str) -> None:
    source = (CORE_API / f"{loop}.py").read_text()
    called = {
        node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)
    } | {alias.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import)
         for alias in node.names}  # fmt: skip
    assert not called & {"pickle", "joblib", "allow_pickle", "dump", "save_weights"}
    assert "torch.save" not in source
