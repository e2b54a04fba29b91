"""The examples of docs/client.md, run one after the other."""

from __future__ import annotations

import re

import pytest
from client_store import ClientStore
from source_tree import ROOT
from toy_command import TOY_PLUGIN

WEIGHTS = {"toy.json": '{"weights": [1.0, 2.0]}'}


def test_every_example_works(
    store: ClientStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(TOY_PLUGIN))
    monkeypatch.setenv("DETCORE_PLUGINS", "core,toy")
    trial = store.trial(store.experiment(), rate=0.5)
    first = store.checkpoint(trial, 10, {"loss": 0.5, "accuracy": 0.9}, files=WEIGHTS)
    store.checkpoint(trial, 20, {"loss": 0.1, "accuracy": 0.8}, files=WEIGHTS)
    text = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == text.count("```") // 2
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "client.md", "exec"), scope)
    said = capsys.readouterr().out
    assert "loss COMPLETED" in said
    assert f"checkpoints/{first}" in said
    assert "digits 1" in said
    scope["client"].close()  # type: ignore[attr-defined]  # a Determined
