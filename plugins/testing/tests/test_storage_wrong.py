"""Storages with one fault each are rejected, and the clause they break is named.

That the storage of which they are changes keeps all clauses is shown in test_storage_suite.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from storage_backends import WRONG, Wrong, suite_of
from suite_clauses import clauses_of, run_clause

from detcore_testing import StorageSuite


@pytest.mark.soak
@pytest.mark.parametrize("backend", WRONG, ids=lambda backend: backend.__name__)
def test_a_wrong_storage_is_rejected_and_the_clause_named(
    backend: type[Wrong],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(".")  # one of them goes away and stays there
    error = run_clause(suite_of(backend), backend.broken, tmp_path)
    assert error is not None
    assert error.clause == backend.broken


def test_nearly_every_clause_has_a_storage_that_breaks_it() -> None:
    shown = {backend.broken for backend in WRONG}
    assert set(clauses_of(StorageSuite)) - shown == {"settings-reject-unknown-fields"}
