"""The figures in ratchet.json only improve: weight of a worker, public names, ``Any``, English."""

from __future__ import annotations

from pathlib import Path

import pytest
from english import find, rates, read_prose
from source_tree import Module

from .ratchet import (
    COMMAND,
    LoosenedError,
    compare,
    count_any,
    import_lines,
    measure_source,
    measure_worker,
    public_names,
    read_limits,
    tighten,
)


def _part(*, is_worker: bool) -> dict[str, float]:
    limits = read_limits()
    return {name: limits[name] for name in limits if name.startswith("worker_") is is_worker}


def test_the_source_stays_within_its_limits() -> None:
    assert compare(_part(is_worker=False), measure_source()) == []


@pytest.mark.cold
def test_a_worker_loads_no_more_than_it_may(tmp_path: Path) -> None:
    assert compare(_part(is_worker=True), measure_worker(tmp_path)) == []


@pytest.mark.parametrize("name", ["worker_modules", "english_what_as_subject", "worker_lines"])
def test_a_figure_that_got_worse_is_an_error_and_the_command_does_not_hide_it(name: str) -> None:
    limits = read_limits()
    worse = {**limits, name: limits[name] + 0.01}
    (message,) = compare(limits, worse)
    assert message.startswith(f"{name} is ")
    assert "may only improve" in message
    with pytest.raises(LoosenedError, match=f"{name} is .*, its limit"):
        tighten(limits, worse)


@pytest.mark.parametrize(
    ("name", "limit", "slightly", "clearly"),
    [
        ("worker_modules", 233, 231, 230),
        ("worker_lines", 36500, 36201, 36200),
        ("english_anew", 8.0, 6.6, 6.5),
        ("worker_loads_yaml", 1, 1, 0),
        ("core_import_percent", 14.1, 13.81, 13.8),
    ],
)
def test_a_figure_that_is_clearly_better_has_to_be_written_down(
    name: str, limit: float, slightly: float, clearly: float
) -> None:
    assert compare({name: limit}, {name: slightly}) == []
    (message,) = compare({name: limit}, {name: clearly})
    assert message.startswith(f"{name} is ")
    assert COMMAND in message
    lowered = tighten({name: limit}, {name: clearly})
    assert clearly <= lowered[name] < limit
    assert compare(lowered, {name: clearly}) == []


def test_limits_leave_room_for_a_few_lines() -> None:
    lowered = tighten({"core_lines": 900.0}, {"core_lines": 701})
    assert lowered == {"core_lines": 800.0}
    assert compare(lowered, {"core_lines": 720}) == []


def test_a_limit_and_its_figure_come_and_go_together() -> None:
    assert COMMAND in compare({}, {"core_lines": 3})[0]
    assert compare({"core_lines": 3}, {}) == ["core_lines is not measured: delete its limit"]
    assert tighten({"core_lines": 3}, {}) == {}


PROSE = '''
"""What the module is for.

Tell `them` what is there. Who reads it goes on. Whoever it is, nobody is told.

Args:
    given: what the user gave, of its own.
    other: The lines, sorted anew.
"""

# That a file is there says nothing: what is in it
# does, and there is none. What else could it be?


def plain(x):
    """Return the lines, whatever they are.

    That is what a reader expects.

    >>> plain("What is this")
    """
    return "What a string says"  # that is fine
'''


def test_the_constructions_that_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "prose.py"
    path.write_text(PROSE, encoding="utf-8")
    found: dict[str, list[tuple[int, str]]] = {}
    for place in find(read_prose([path])):
        line = PROSE.splitlines()[place.line - 1].strip()
        found.setdefault(place.pattern, []).append((place.line, line.partition(" ")[0]))
    assert {name: [line for line, _ in places] for name, places in found.items()} == {
        "what_as_subject": [2, 4, 4, 7, 11, 11],
        "what_clause": [4, 7, 18, 11],
        "goes_on": [4],
        "is_told": [4],
        "nobody": [4, 4],
        "of_its_own": [7],
        "anew": [8],
        "there_is_none": [12],
    }


def test_rates_are_per_ten_thousand_words(tmp_path: Path) -> None:
    path = tmp_path / "prose.py"
    path.write_text(f"# What counts is this:\n# {'word ' * 496}\n", encoding="utf-8")
    assert rates(read_prose([path]))["what_as_subject"] == 20.0


def test_any_in_signatures_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(
        "from typing import Any, Mapping\n"
        "value: Any = 1\n"
        "def f(a: Any, *b: int, c: dict[str, Any] | None) -> list[Mapping[str, Any]]: ...\n"
        "async def g(*a: Any, **k: dict[str, list[Any]]) -> None: ...\n",
        encoding="utf-8",
    )
    assert count_any([Module("m", path)]) == (2, 3)


def test_imports_are_counted_in_the_lines_of_code(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(
        '"""Text\n\nof the module."""\nimport a\nfrom b import (\n    c,\n)\n# why\n\n'
        '__all__ = ["f"]\n\n\ndef f():\n    import d\n    return 1\n',
        encoding="utf-8",
    )
    assert import_lines(Module("m", path)) == (6, 8)


def test_names_of_the_public_api_are_counted_without_their_members() -> None:
    text = (
        "module a\n  @decorator\n  class B(C)\n    def m(self) -> None\n  LIMIT: int = 3\n"
        "  def f(x: int) -> int\n  def f(x: str) -> str\n  other = b.other\n"
        "  async def g() -> None\n\nmodule b\n  other: defined elsewhere\n"
    )
    assert public_names(text) == {"a.B", "a.LIMIT", "a.f", "a.g", "a.other", "b.other"}
