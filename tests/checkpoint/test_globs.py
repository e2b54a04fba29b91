"""Patterns for files of a checkpoint."""

from __future__ import annotations

import sys

import pytest

from detcore.checkpoint._delete import split_by_globs


@pytest.mark.parametrize(
    ("pattern", "gone"),
    [
        ("**/a/**/b", {"a/b", "a/a/b", "x/a/x/b"}),
        ("**/a/**", {"a/b", "a/a/b", "x/a/x/b", "a/a/c"}),
        ("**", {"a/b", "a/a/b", "x/a/x/b", "a/a/c", "c"}),
        ("a/*/c", {"a/a/c"}),
        ("**/c", {"a/a/c", "c"}),
        ("*", {"a/b", "a/a/b", "x/a/x/b", "a/a/c", "c"}),
        ("a/**/x/**/b", set()),
    ],
)
def test_folders_between(pattern: str, gone: set[str]) -> None:
    files = ["a/b", "a/a/b", "x/a/x/b", "a/a/c", "c"]
    assert split_by_globs(files, [], [pattern]).gone_files == gone


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
