"""Frameworks with one fault each are rejected, and the clause that they break is named.

By default those that are not rare are shown to the clause in question; what cannot show the fault
is the right framework's run. ``--wrong=all`` takes all of them, and ``--wrong=whole`` has each make
its own runs for the whole suite.
"""

from __future__ import annotations

import importlib
import inspect
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detcore.testing import BrokenContractError, FrameworkRuns, FrameworkSuite

WRONG = Path(__file__).parent / "wrong"
MODULES = ("framework_state", "framework_training", "framework_ends", "framework_workers")
HOOKS = """
from detcore import hookimpl
from detcore.types import Framework

@hookimpl
def detcore_register_framework():
    return Framework(**{fields!r})
"""


class LineSuite(FrameworkSuite):
    framework = "line"
    model_dir = WRONG / "model"
    entrypoint = "line_def:LineTrial"
    worker_entrypoint = "line_def:SteadyTrial"
    broken_entrypoint = "line_def:BrokenTrial"
    stop_entrypoint = "line_def:StoppingTrial"
    hyperparameters = {"global_batch_size": 8, "learning_rate": 0.05}
    invalid_hyperparameters = {"learning_rate": -1.0}
    batches_per_epoch = 6
    num_validation_records = 49
    callback_kinds = (
        *("train_begin", "batch_end", "checkpoint"),
        *("validation_begin", "validation_end", "train_end"),
    )

    def read_state(self, checkpoint: Path) -> Mapping[str, np.ndarray]:
        path = checkpoint / "line.json"
        state = json.loads(path.read_text()) if path.exists() else {}
        return {name: np.asarray(state[name]) for name in state if name != "noise"}

    def callback_events(self, journal: Path) -> Sequence[str]:
        return journal.read_text().split()


def wrong_controllers() -> list[type[Any]]:
    sys.path.insert(0, str(WRONG))
    try:
        right = importlib.import_module("framework_right").RightController
        return [
            found
            for name in MODULES
            for found in vars(importlib.import_module(name)).values()
            if inspect.isclass(found) and issubclass(found, right) and found.__module__ == name
        ]
    finally:
        sys.path.remove(str(WRONG))


CONTROLLERS = wrong_controllers()


def install(controller: type[Any], site: Path) -> Path:
    """Write the distribution of a plugin with this controller."""
    fields = {
        "name": "line",
        "trial_class": "framework_right:RightTrial",
        "context_class": "detcore:TrialContext",
        "controller": f"{controller.__module__}:{controller.__name__}",
        "load_checkpoint": "framework_right:load_model",
        "several_workers": True,
        "requires": ("heavyframe",),
        **controller.framework,
    }
    info = site / "detcore_line-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: detcore-line\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[detcore]\nline = detcore_line\n[detcore.api]\nline = 1.0\n"
    )
    (site / "detcore_line.py").write_text(controller.hooks + HOOKS.format(fields=fields))
    return site


def make_suite(controller: type[Any], folder: Path) -> LineSuite:
    path = (install(controller, folder / "plugin"), WRONG)
    made = type("WrongSuite", (LineSuite,), {"python_path": path, **controller.suite})
    suite: LineSuite = made()
    return suite


def clauses(suite: FrameworkSuite) -> dict[str, Any]:
    members = inspect.getmembers(suite, lambda value: hasattr(value, "clause"))
    return {method.clause: method for _, method in members}


@pytest.fixture(scope="module")
def right_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrameworkRuns]:
    runs = FrameworkRuns(TestRightFramework(), tmp_path_factory.mktemp("right") / "suite")
    yield runs
    runs.close()


class TestRightFramework(LineSuite):
    """The control: what the wrong ones are changes of keeps every clause."""

    python_path = (WRONG,)


@pytest.mark.soak
@pytest.mark.parametrize("controller", CONTROLLERS, ids=lambda controller: controller.__name__)
def test_a_wrong_framework_breaks_its_clause(
    controller: type[Any],
    right_runs: FrameworkRuns,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    mode = request.config.getoption("--wrong", "some")
    if mode == "some" and controller.is_rare:
        pytest.skip("others break this clause likewise; --wrong=all takes it, too")
    suite = make_suite(controller, tmp_path)
    runs = FrameworkRuns(suite, tmp_path / "suite")
    if mode != "whole" and not controller.needs_own_reference:
        if controller.clause.startswith("two-workers"):
            runs.adopt("one worker", right_runs.one_worker)
        else:
            runs.adopt("reference", right_runs.reference)
            shutil.copytree(right_runs.detcore.home, runs.detcore.home)
    try:
        broken = broken_clauses(suite, runs, None if mode == "whole" else controller.clause)
    finally:
        runs.close()
    assert controller.clause in broken


def broken_clauses(
    suite: FrameworkSuite, runs: FrameworkRuns, only: str | None
) -> dict[str, BrokenContractError]:
    """Show the clauses one after the other; return those that are broken, with what was found."""
    broken: dict[str, BrokenContractError] = {}
    for name, test in clauses(suite).items():
        if only in (None, name):
            try:
                test(runs)
            except BrokenContractError as error:
                broken[name] = error
    for name, found in broken.items():
        assert found.clause == name
        assert f"FrameworkSuite: the clause {name!r} is broken" in str(found)
    return broken


def test_there_are_enough_wrong_frameworks_and_each_clause_has_one() -> None:
    named = [controller.clause for controller in CONTROLLERS]
    of_the_core = {"a-wrong-entrypoint-is-told"}  # a plugin can only be in its way
    assert set(named) == set(clauses(TestRightFramework())) - of_the_core
    assert len(CONTROLLERS) >= 26
    assert sum(not controller.is_rare for controller in CONTROLLERS) >= 26
