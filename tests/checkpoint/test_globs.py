"""Patterns for files of a checkpoint."""

from __future__ import annotations

import sys

from detcore.checkpoint._delete import split_by_globs


def test_many_folders_between_cost_little() -> None:
    # All ways to spread 30 parts over 60 folders are more than 10 ** 17.
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1
        assert calls < 2_000_000

    sys.setprofile(count)
    try:
        split = split_by_globs(["a/" * 60 + "c"], [], ["**/a/" * 30 + "b", "**/" * 5000 + "b"])
    finally:
        sys.setprofile(None)
    assert split.gone_files == set()


def test_a_pattern_of_thousands_of_parts() -> None:
    assert split_by_globs(["a/" * 60 + "c"], [], ["a/" * 5000 + "c"]).gone_files == set()
