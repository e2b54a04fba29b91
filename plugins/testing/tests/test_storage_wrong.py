"""Each storage with one fault breaks the clause for that fault.

test_storage_suite shows that the correct storage passes all clauses.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from storage_backends import WRONG, Wrong, make_suite
from suite_clauses import clauses_of, run_clause

from detcore_testing import StorageSuite


@pytest.mark.soak
@pytest.mark.parametrize("backend", WRONG, ids=lambda backend: backend.__name__)
def test_wrong_storage_breaks_its_clause(
    backend: type[Wrong],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(".")  # restores the directory that a storage changes
    error = run_clause(make_suite(backend), backend.broken, tmp_path)
    assert error is not None
    assert error.clause == backend.broken


def test_each_clause_has_wrong_storage() -> None:
    broken_clauses = {backend.broken for backend in WRONG}
    assert set(clauses_of(StorageSuite)) - broken_clauses == {"settings-reject-unknown-fields"}
