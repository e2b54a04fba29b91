"""The scripts of examples/core_api are short and save no pickles."""

from __future__ import annotations

import ast

import pytest
from loop_runs import CORE_API, LOOPS


@pytest.mark.parametrize("loop", LOOPS)
def test_loop_is_shorter_than_100_lines(loop: str) -> None:
    assert len((CORE_API / f"{loop}.py").read_text().splitlines()) < 100


@pytest.mark.parametrize("loop", LOOPS)
def test_loop_saves_no_pickle(loop: str) -> None:
    source = (CORE_API / f"{loop}.py").read_text()
    names = {
        node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)
    } | {alias.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import)
         for alias in node.names}  # fmt: skip
    assert not names & {"pickle", "joblib", "allow_pickle", "dump", "save_weights"}
    assert "torch.save" not in source
