"""Search methods with one fault each are rejected, and the clause they break is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from searcher_methods import WRONG, Right, suite_of
from suite_clauses import broken_clauses, clauses_of, run_clause

from detcore_testing import SearcherSuite


@pytest.mark.soak
@pytest.mark.parametrize("made", WRONG, ids=lambda made: made.__name__)
def test_a_wrong_method_is_rejected_and_the_clause_named(
    made: type[Right],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("working", "clauses"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "working")  # one of them writes a file there
    error = run_clause(suite_of(made), made.broken, tmp_path / "clauses")
    assert error is not None
    assert error.clause == made.broken


def test_the_right_method_keeps_all_clauses(tmp_path: Path) -> None:
    assert broken_clauses(suite_of(Right), tmp_path) == []


def test_every_clause_has_a_method_that_breaks_it() -> None:
    assert {made.broken for made in WRONG} == set(clauses_of(SearcherSuite))
