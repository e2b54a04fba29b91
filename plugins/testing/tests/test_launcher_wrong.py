"""Launchers with one fault each are rejected, and the clause they break is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from launcher_groups import WRONG, Right, suite_of
from suite_clauses import clauses_of, run_clause

from detcore_testing import LauncherSuite


@pytest.mark.soak
@pytest.mark.parametrize("made", WRONG, ids=lambda made: made.__name__)
def test_a_wrong_launcher_is_rejected_and_the_clause_named(
    made: type[Right], tmp_path: Path
) -> None:
    error = run_clause(suite_of(made), made.broken, tmp_path)
    assert error is not None
    assert error.clause == made.broken


def test_every_clause_has_a_launcher_that_breaks_it() -> None:
    assert set(clauses_of(LauncherSuite)) == {made.broken for made in WRONG}
