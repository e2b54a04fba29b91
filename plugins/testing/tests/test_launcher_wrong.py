"""Each launcher with one fault breaks the clause for that fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from launcher_groups import WRONG, Right, make_suite
from suite_clauses import clauses_of, run_clause

from detcore_testing import LauncherSuite


@pytest.mark.soak
@pytest.mark.parametrize("launcher", WRONG, ids=lambda launcher: launcher.__name__)
def test_wrong_launcher_breaks_its_clause(launcher: type[Right], tmp_path: Path) -> None:
    error = run_clause(make_suite(launcher), launcher.broken, tmp_path)
    assert error is not None
    assert error.clause == launcher.broken


def test_each_clause_has_wrong_launcher() -> None:
    assert set(clauses_of(LauncherSuite)) == {launcher.broken for launcher in WRONG}
