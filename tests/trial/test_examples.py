"""The examples in the docstrings of `detcore.trial`."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ["attribute_state", "live_values", "random_state", "schedule"]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_work(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"detcore.trial.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
