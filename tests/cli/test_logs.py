"""Test when reading of logs ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from detcore.cli import log_commands


class Pages:
    """Logs that grow by a page before each read."""

    def __init__(self, *pages: str) -> None:
        self.left = list(pages)

    def read(self) -> Iterator[str]:
        return iter(self.left.pop(0))

    def is_over(self) -> bool:
        return len(self.left) == 1


@pytest.mark.parametrize(
    ("pages", "follow", "tail", "shown"),
    [
        (["abc", "de", "f"], False, None, ["abc"]),
        (["abc"], False, None, ["abc"]),
        (["abc", "de", "f"], False, 2, ["bc"]),
        (["abc", "de", "f"], True, None, ["abc", "de", "f"]),
        (["abc", "de", "f"], True, 1, ["c", "de", "f"]),
        (["abc"], True, None, ["abc"]),
    ],
)
def test_logs_end_immediately_without_follow(
    monkeypatch: pytest.MonkeyPatch,
    pages: list[str],
    follow: bool,
    tail: int | None,
    shown: list[str],
) -> None:
    monkeypatch.setattr(log_commands, "_POLL_INTERVAL_S", 0.0)
    printed: list[str] = []

    def show(lines: Iterable[Any]) -> None:
        printed.append("".join(lines))

    source: Any = Pages(*pages)
    log_commands._show_lines(source.read, source.is_over, show, follow=follow, tail=tail)
    assert printed == shown
