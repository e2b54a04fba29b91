"""Run single clauses of suites on correct and wrong plugins."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from detcore_testing import BrokenContractError

__all__ = ["broken_clauses", "clauses_of", "run_clause"]


def clauses_of(suite: type[Any]) -> list[str]:
    """Return the sorted names of a suite's clauses."""
    members = inspect.getmembers(suite, lambda member: hasattr(member, "clause"))
    return sorted(str(member.clause) for _, member in members)


def run_clause(suite: type[Any], name: str, tmp_path: Path) -> BrokenContractError | None:
    """Run the test of one clause, and return its error or None.

    Args:
        suite: Suite class of a plugin.
        name: Name of the clause.
        tmp_path: Empty directory.
    """
    test = getattr(suite(), f"test_{name.replace('-', '_')}")
    arguments = {"tmp_path": tmp_path} if "tmp_path" in inspect.signature(test).parameters else {}
    try:
        with _unshrunk():
            test(**arguments)
    except BrokenContractError as error:
        return error
    except pytest.skip.Exception:
        return None
    return None


def broken_clauses(suite: type[Any], tmp_path: Path) -> list[str]:
    """Run all clauses of a suite, and return the names of broken clauses."""
    broken = []
    for name in clauses_of(suite):
        folder = tmp_path / name
        folder.mkdir()
        if run_clause(suite, name, folder) is not None:
            broken.append(name)
    return broken


@contextlib.contextmanager
def _unshrunk() -> Iterator[None]:
    """Report the first failing example without shrinking it."""
    settings.register_profile("unshrunk", phases=[Phase.explicit, Phase.generate])
    before = settings.get_current_profile_name()
    settings.load_profile("unshrunk")
    try:
        yield
    finally:
        settings.load_profile(before)
