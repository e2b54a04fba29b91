"""The examples in the docstrings of the Core API."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

MODULES = [
    "detcore.core.core_context",
    "detcore.core.train_context",
    "detcore.core.preempt_context",
    "detcore.checkpoint.checkpoint_context",
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path))
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
