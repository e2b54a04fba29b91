"""Each framework with one fault breaks the clause for that fault.

Tests run only that clause. Runs that the fault cannot affect come from the correct framework.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import inspect
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detcore.records import MetricRecord, TrialRecord
from detcore.types import TrialState
from detcore_testing import BrokenContractError, FrameworkSuite
from detcore_testing.command import Finished
from detcore_testing.framework.framework_runs import FrameworkRun, FrameworkRuns

WRONG = Path(__file__).parent / "wrong"
MODULES = ("framework_state", "framework_training", "framework_ends", "framework_workers")
UUID = "3f0f7f0e-5d0c-4c7e-9c36-0a1b2c3d4e5f"
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
    changed_hyperparameters = {"learning_rate": 0.02}
    batches_per_epoch = 6
    num_validation_records = 49
    batch_counter = "step"
    callback_kinds = (
        *("train_begin", "batch_end", "checkpoint"),
        *("validation_begin", "validation_end", "train_end"),
    )

    def read_state(self, checkpoint: Path) -> Mapping[str, np.ndarray]:
        path = checkpoint / "line.json"
        state = json.loads(path.read_text()) if path.exists() else {}
        return {name: np.asarray(state[name]) for name in state if name != "noise"}

    def compute_validation(self, checkpoint: Path) -> Mapping[str, float]:
        weights = self.read_state(checkpoint)["weights"]
        x = np.random.default_rng(49).normal(size=(49, 3))
        return {"val_loss": float(np.mean((x @ (weights - [1.0, -2.0, 0.5])) ** 2))}

    def callback_events(self, journal: Path) -> Sequence[str]:
        return journal.read_text().split()


def load(name: str) -> Any:
    sys.path.insert(0, str(WRONG))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(WRONG))


def wrong_controllers() -> list[type[Any]]:
    right = load("framework_right").RightController
    return [
        value
        for name in MODULES
        for value in vars(load(name)).values()
        if inspect.isclass(value) and issubclass(value, right) and value.__module__ == name
    ]


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
    (info / "entry_points.txt").write_text("[detcore]\nline = detcore_line\n")
    (site / "detcore_line.py").write_text(controller.hooks + HOOKS.format(fields=fields))
    return site


def make_suite(controller: type[Any], folder: Path) -> LineSuite:
    path = (install(controller, folder / "plugin"), WRONG)
    suite_class = type("WrongSuite", (LineSuite,), {"python_path": path, **controller.suite})
    suite: LineSuite = suite_class()
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
    """Control: the correct framework passes every clause."""

    python_path = (WRONG,)


@pytest.mark.soak
@pytest.mark.parametrize("controller", CONTROLLERS, ids=lambda controller: controller.__name__)
def test_wrong_framework_breaks_its_clause(
    controller: type[Any],
    right_runs: FrameworkRuns,
    tmp_path: Path,
) -> None:
    suite = make_suite(controller, tmp_path)
    runs = FrameworkRuns(suite, tmp_path / "suite")
    if not controller.needs_own_reference:
        if controller.clause.startswith("two-workers"):
            runs.adopt("one worker", right_runs.one_worker)
        else:
            runs.adopt("reference", right_runs.reference)
            shutil.copytree(right_runs.detcore.home, runs.detcore.home)
    try:
        with pytest.raises(BrokenContractError) as caught:
            clauses(suite)[controller.clause](runs)
    finally:
        runs.close()
    assert caught.value.clause == controller.clause
    assert f"FrameworkSuite: clause {controller.clause!r} failed" in str(caught.value)
    assert controller.message in str(caught.value)


@pytest.mark.parametrize("name", [".detcore-left", "home", UUID, "config-1.yaml"])
def test_own_file_names_are_strays_elsewhere(name: str, tmp_path: Path) -> None:
    # The private method avoids one run for each stray.
    runs = FrameworkRuns(TestRightFramework(), tmp_path / "suite")
    try:
        is_stored = name.startswith(".") or len(name) == 36
        home = runs.folder / "checkpoints" if is_stored else runs.detcore.folder
        folders = {runs.temporary, runs.model_dir, runs.detcore.folder, runs.folder / "checkpoints"}
        before = runs._list_strays()
        for folder in folders:
            (folder / name).mkdir(parents=True, exist_ok=True)
        strays = runs._list_strays() - before
    finally:
        runs.close()
    assert strays == {str(folder / name) for folder in folders - {home}}


def make_run(loss: float, *codes: int) -> FrameworkRun:
    """Return a run that reports one training metric."""
    summary = json.dumps({"trials": [{"steps_completed": LineSuite.num_batches}]})
    trial = TrialRecord(
        id=1,
        experiment_id=1,
        state=TrialState.COMPLETED,
        error=None,
        hparams={},
        seed=0,
        trial_dir=None,
        created_at=datetime.datetime.now(datetime.timezone.utc),
        ended_at=None,
    )
    record = MetricRecord(
        trial_id=1,
        run_id=1,
        kind="training",
        steps_completed=5,
        metrics={"loss": loss},
    )
    return FrameworkRun(
        finished=tuple(Finished(code, summary, "") for code in codes),
        trial=trial,
        training={5: record},
        validations={},
        checkpoints={},
        commits=(),
        journal=Path("journal"),
        leftovers=(),
    )


@pytest.mark.parametrize(("loss", "is_near"), [(1e-9, True), (1e-3, False)])
def test_metrics_near_zero_use_absolute_tolerance(
    loss: float, is_near: bool, tmp_path: Path
) -> None:
    suite = TestRightFramework()
    runs = FrameworkRuns(suite, tmp_path / "suite")
    runs.adopt("reference", make_run(0.0, 0))
    runs.adopt("interrupted", make_run(loss, 1, 75, 0))
    expected = pytest.raises(BrokenContractError, match=r"not 0\.0")
    try:
        with contextlib.nullcontext() if is_near else expected:
            clauses(suite)["resume-continues-at-checkpoint"](runs)
    finally:
        runs.close()


EXACT_RESUME = {
    *("exact-resume-after-kill", "exact-resume-after-sigterm"),
    *("exact-resume-in-later-epoch", "two-workers-resume-exactly"),
}


@pytest.mark.soak
def test_inexact_framework_skips_exact_clauses(
    tmp_path: Path,
) -> None:
    suite = make_suite(load("framework_right").InexactController, tmp_path)
    runs = FrameworkRuns(suite, tmp_path / "suite")
    skipped, broken = {}, {}
    try:
        for name, test in clauses(suite).items():
            try:
                test(runs)
            except BrokenContractError as error:
                broken[name] = str(error)
            except pytest.skip.Exception as error:
                skipped[name] = str(error)
    finally:
        runs.close()
    assert broken == {}
    reason = "Framework.inexact_resume: the generator of the noise is not saved"
    assert {name for name, text in skipped.items() if text == reason} == EXACT_RESUME
    assert "resume-continues-at-checkpoint" not in skipped


def test_exact_resume_runs_before_snapshot_clause() -> None:
    """``pytest -x`` must report a `restore` fault first."""
    output = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider",
         f"{__file__}::TestRightFramework"],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    order = [line.rpartition("::test_")[2] for line in output.splitlines() if "::test_" in line]
    exact = [order.index(name.replace("-", "_")) for name in EXACT_RESUME if "two" not in name]
    assert max(exact) < order.index("snapshot_equals_save")


def test_each_clause_has_wrong_framework() -> None:
    core_clauses = {"wrong-entrypoint-is-reported"}  # implemented by the core
    broken_clauses = {controller.clause for controller in CONTROLLERS}
    assert broken_clauses == set(clauses(TestRightFramework())) - core_clauses
