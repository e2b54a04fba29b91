"""Docstrings and comments avoid constructions that readers have to decode; see `english`."""

from __future__ import annotations

from english import rates, read_prose
from source_tree import PLUGIN_SOURCES, SOURCE, modules_under

# Occurrences in 10,000 words.
MAX_RATES = {
    "what_as_subject": 1.0, "what_clause": 1.0, "goes_on": 0.5, "is_told": 0.5, "anew": 0.1,
    "of_its_own": 0.5, "nobody": 0.1, "there_is_none": 0.5,
}  # fmt: skip


def test_prose_is_plain() -> None:
    modules = [module for path in (SOURCE, *PLUGIN_SOURCES) for module in modules_under(path)]
    places = rates(read_prose(module.path for module in modules))
    assert {name: rate for name, rate in places.items() if rate > MAX_RATES[name]} == {}
