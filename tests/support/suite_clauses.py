"""Clauses of suites, run one by one on plugins that keep them or do not."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from detcore_testing import BrokenContractError, Suite

__all__ = ["broken_clauses", "clauses_of", "find_broken", "run_clause"]


def clauses_of(suite: type[Suite]) -> list[str]:
    """Return the names of a suite's clauses, sorted."""
    members = inspect.getmembers(suite, lambda member: hasattr(member, "clause"))
    return sorted(str(member.clause) for _, member in members)


def run_clause(suite: type[Suite], name: str, tmp_path: Path) -> BrokenContractError | None:
    """Run the test of one clause; return how it is broken, or None.

    Args:
        suite: A suite that names its plugin.
        name: The clause.
        tmp_path: An empty folder.
    """
    test = getattr(suite(), f"test_{name.replace('-', '_')}")
    given = {"tmp_path": tmp_path} if "tmp_path" in inspect.signature(test).parameters else {}
    try:
        with _unshrunk():
            test(**given)
    except BrokenContractError as error:
        return error
    except pytest.skip.Exception:
        return None
    return None


def broken_clauses(suite: type[Suite], tmp_path: Path) -> list[str]:
    """Run all clauses of a suite; return the names of those that are broken."""
    broken = []
    for name in clauses_of(suite):
        folder = tmp_path / name
        folder.mkdir()
        if run_clause(suite, name, folder) is not None:
            broken.append(name)
    return broken


def find_broken(suite: type[Suite], name: str, tmp_path: Path, *, shows_all: bool) -> list[str]:
    """Show a plugin that breaks a clause to the suite; return the clauses that it breaks.

    Args:
        suite: A suite that names the plugin.
        name: The clause.
        tmp_path: An empty folder.
        shows_all: Whether to run all clauses, rather than this one.
    """
    if shows_all:
        return broken_clauses(suite, tmp_path)
    error = run_clause(suite, name, tmp_path)
    return [] if error is None else [error.clause]


@contextlib.contextmanager
def _unshrunk() -> Iterator[None]:
    """Take the first example that breaks a clause, rather than the smallest."""
    settings.register_profile("unshrunk", phases=[Phase.explicit, Phase.generate])
    before = settings.get_current_profile_name()
    settings.load_profile("unshrunk")
    try:
        yield
    finally:
        settings.load_profile(before)
