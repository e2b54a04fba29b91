"""The repository is written in plain English; see `english`."""

from __future__ import annotations

from collections import Counter

import pytest
from english import find_places
from source_tree import ROOT

AREAS = {
    "core": ("src",),
    "plugins": ("plugins/*/src",),
    "tests": ("tests", "plugins/*/tests"),
    "docs": ("docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "plugins/*/README.md"),
    "examples": ("examples",),
    "tools": ("tools", "benchmarks", "noxfile.py"),
}
# Places in 10,000 words, and variables in 1,000 assignments. The public code of pytest, click,
# anyio, Accelerate and Lightning has 3 to 11 places and 0 to 3 variables.
MAX_PLACES = 8
MAX_VARIABLES = 5


@pytest.mark.parametrize("area", AREAS)
def test_area_is_plain_english(area: str) -> None:
    words = Counter[str]()
    places = Counter[str]()
    for pattern in AREAS[area]:
        for root in ROOT.glob(pattern):
            for path in [root] if root.is_file() else root.rglob("*.*"):
                if path.suffix in (".py", ".md", ".tmpl", ".yaml"):
                    places.update(kind for kind, _ in find_places(path, words))
    rates = {
        kind: round(places[kind] / words[kind] * (1000 if kind == "variable" else 10_000), 1)
        for kind in words
    }
    limits = {kind: MAX_VARIABLES if kind == "variable" else MAX_PLACES for kind in words}
    assert {kind: rate for kind, rate in rates.items() if rate > limits[kind]} == {}
