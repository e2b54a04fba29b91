"""Each search method with one fault breaks the clause for that fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from searcher_methods import WRONG, Right, make_suite
from suite_clauses import broken_clauses, clauses_of, run_clause

from detcore_testing import SearcherSuite


@pytest.mark.soak
@pytest.mark.parametrize("method", WRONG, ids=lambda method: method.__name__)
def test_wrong_method_breaks_its_clause(
    method: type[Right],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("working", "clauses"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "working")  # a method writes a file there
    error = run_clause(make_suite(method), method.broken, tmp_path / "clauses")
    assert error is not None
    assert error.clause == method.broken


def test_right_method_passes_all_clauses(tmp_path: Path) -> None:
    assert broken_clauses(make_suite(Right), tmp_path) == []


def test_each_clause_has_wrong_method() -> None:
    assert {method.broken for method in WRONG} == set(clauses_of(SearcherSuite))
