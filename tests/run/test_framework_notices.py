"""Start-up messages of frameworks: disabled by variables, or logged and not displayed."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, cast

import pytest
from fake_distributions import write_distribution
from toy_command import Detcore

from detcore.launch import framework_variables
from detcore.records import read_output_log
from detcore.run.running_trial import TrialOutput
from detcore.types import Framework


class Plugins:
    """The one method of a plugin manager that is asked."""

    def frameworks(self) -> dict[str, Framework]:
        names: dict[str, Any] = {"trial_class": "x:X", "context_class": "x:X", "controller": "x:X"}
        loud = Framework(name="loud", variables=(("LOUD_LOG", "2"), ("LOUD_COLOUR", "0")), **names)
        return {"quiet": Framework(name="quiet", **names), "loud": loud}


def test_workers_get_default_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = cast(Any, Plugins())
    monkeypatch.delenv("LOUD_LOG", raising=False)
    monkeypatch.delenv("LOUD_COLOUR", raising=False)
    assert framework_variables(plugins) == {"LOUD_LOG": "2", "LOUD_COLOUR": "0"}
    monkeypatch.setenv("LOUD_LOG", "0")
    assert framework_variables(plugins) == {"LOUD_COLOUR": "0"}


TREES_HOOKS = """
from detcore import hookimpl
from detcore.types import Framework

@hookimpl
def detcore_register_framework():
    return Framework(
        name="trees",
        trial_class="detcore_trees.trial:TreesTrial",
        context_class="detcore:TrialContext",
        controller="detcore_toy:ToyController",
        inexact_resume="the subsample is drawn again",
    )
"""
TREES_TRIAL = """
from detcore import Trial

class TreesTrial(Trial):  # of no other framework; this is all that its controller wants to know
    restarts_data = False
    noise = 1e-3
"""
TREES_MODEL = """
from pathlib import Path
import numpy as np
from detcore_trees.trial import TreesTrial

class Trees(TreesTrial):
    def build_data(self):
        x = np.random.default_rng(3).normal(size=(96, 3))
        return x, x @ np.array([1.0, -2.0, 0.5])

    def on_batch(self, step):
        if step == 1 and Path("broken").exists():
            raise ValueError("broken")
"""


def test_inexact_resume_is_reported_once(tmp_path: Path) -> None:
    modules = {"detcore_trees.plugin": TREES_HOOKS, "detcore_trees.trial": TREES_TRIAL}
    write_distribution(tmp_path / "site", "detcore-trees", modules=modules)
    code = tmp_path / "code"
    code.mkdir()
    (code / "trees_def.py").write_text(TREES_MODEL)
    (code / "broken").touch()
    notice = "trees: an interrupted trial does not resume bit for bit: the subsample is drawn"
    length = {"metric": "val_loss", "max_length": {"batches": 2}}
    searcher = {"name": "random", "max_trials": 2, "max_concurrent_trials": 1, **length}
    with Detcore(tmp_path, site=tmp_path / "site") as detcore:
        config = detcore.config(entrypoint="trees_def:Trees", searcher={"name": "single", **length})
        failed = detcore.run_failing("run", config, code)
        assert failed.output.count(notice) == 1, failed.output
        (code / "broken").unlink()
        resumed = detcore.run_checked("run", "--resume", 1)
        assert resumed.output.count(notice) == 1, resumed.output
        config = detcore.config(entrypoint="trees_def:Trees", searcher=searcher)
        search = detcore.run_checked("run", config, code)
        assert search.output.count(notice) == 1, search.output


def test_notices_are_logged_and_not_displayed(tmp_path: Path) -> None:
    lines = []

    class Listener:
        def output(self, _info: object, _stream: str, line: str, *, rank: int) -> None:
            lines.append(line)

    info = cast(Any, types.SimpleNamespace(trial_dir=str(tmp_path), run_id=1))
    notices = [r"NOTE: .* are on\.", r"OLD: .*\nInstructions:\n.*"]
    output = TrialOutput(info, cast(Any, Listener()), notices)
    output(0, "stderr", "NOTE: custom operations are on.")
    output(0, "stderr", "Error: NOTE: custom operations are on.")
    output(0, "stdout", "NOTE: the lights are on.")
    assert lines == ["Error: NOTE: custom operations are on.", "NOTE: the lights are on."]
    lines.clear()
    for rank, line in (
        (0, "OLD: this"),
        (1, "Instructions:"),  # from another worker
        (0, "Instructions:"),
        (0, "use that"),
        (0, "use that"),
        (1, "OLD: this"),
        (1, "nothing that belongs to it"),
    ):
        output(rank, "stderr", line)
    output.close()
    assert lines == ["Instructions:", "use that", "nothing that belongs to it"]
    assert len(read_output_log(tmp_path)[0]) == 10
