"""When the reading of logs ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from detcore.cli import _logs


class Pages:
    """Logs to which a page is added before each reading."""

    def __init__(self, *pages: str) -> None:
        self.left = list(pages)

    def read(self) -> Iterator[str]:
        return iter(self.left.pop(0))

    def is_over(self) -> bool:
        return len(self.left) == 1


@pytest.mark.parametrize(
    ("pages", "options", "shown"),
    [
        (["abc", "de", "f"], {"follow": False, "tail": None}, ["abc"]),
        (["abc"], {"follow": False, "tail": None}, ["abc"]),
        (["abc", "de", "f"], {"follow": False, "tail": 2}, ["bc"]),
        (["abc", "de", "f"], {"follow": True, "tail": None}, ["abc", "de", "f"]),
        (["abc", "de", "f"], {"follow": True, "tail": 1}, ["c", "de", "f"]),
        (["abc"], {"follow": True, "tail": None}, ["abc"]),
    ],
)
def test_reading_ends_with_the_trial_if_it_is_followed_and_at_once_if_not(
    monkeypatch: pytest.MonkeyPatch, pages: list[str], options: dict[str, Any], shown: list[str]
) -> None:
    monkeypatch.setattr(_logs, "_POLL_S", 0.0)
    written: list[str] = []

    def show(lines: Iterable[Any]) -> None:
        written.append("".join(lines))

    source: Any = Pages(*pages)
    _logs._show_lines(source.read, source.is_over, show, **options)
    assert written == shown
