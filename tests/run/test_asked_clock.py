"""Scripts that ask the clock for work, compared with trials whose controllers the clock calls."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_command import MODEL_DIR, Detcore

from detcore import core
from detcore.config import load_mapping
from detcore.errors import ConfigError, ScheduleError
from detcore.trial import PollingClock, Step, open_clock, restore_latest_checkpoint

# A framework that owns its loop: the toy framework's controller, driven by the script.
SCRIPT = """
import os, signal
from detcore import TrialContext, core
from detcore.trial import Step, TrialSetup, open_clock, restore_latest_checkpoint
from detcore_toy import ToyController
from model_def import Line

with core.init(distributed=core.DistributedContext.from_env()) as context:
    info = context.info
    toy_context = TrialContext(TrialSetup(
        config=info.config, settings=info.settings, hparams=info.hparams, seed=info.trial_seed,
        distributed=context.distributed, info=info, steps_completed=info.steps_completed))
    controller = ToyController(Line(toy_context), toy_context)
    step = info.steps_completed
    with restore_latest_checkpoint(context) as folder:
        clock = open_clock(context, framework="toy", checkpoint=folder,
                           steps_per_epoch=controller.batches_per_epoch())
        controller._digests = clock.digests
        if folder is not None:
            controller.restore(folder)
            controller._weights += info.hparams.get("fault", 0)
    clock.watch(lambda: controller)
    kill_at = info.hparams.get("kill_at")
    metrics = {}
    while (decision := clock.due(step)).step is not Step.STOP:
        if decision.step is Step.TRAIN:
            until = decision.until
            if info.run_id == 1 and kill_at is not None and step < kill_at:
                until = min(until, kill_at)
            metrics = controller.train(until - step)
            step = until
            if info.run_id == 1 and step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        elif decision.step is Step.REPORT:
            clock.reported(metrics)
        elif decision.step is Step.VALIDATE:
            clock.validated(controller.validate())
        else:
            clock.save(controller)
    if clock.stopped == "preempted":
        raise SystemExit(75)
"""
PERIODS = {
    "scheduling_unit": 5,
    "min_validation_period": {"batches": 10},
    "min_checkpoint_period": {"batches": 15},
    "perform_initial_validation": True,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the script and the toy trial."""
    folder = tmp_path / "code"
    shutil.copytree(MODEL_DIR, folder)
    (folder / "train.py").write_text(SCRIPT)
    return folder


def records(detcore: Detcore, experiment: int) -> list[dict[str, Any]]:
    """Return all that the trials of an experiment recorded, without names and times."""
    results = []
    with detcore.database() as database:
        for trial in database.list_trials(experiment):
            trained, validated = (
                [
                    (report.steps_completed, report.metrics)
                    for report in database.metrics(trial.id, kind)
                ]
                for kind in ("training", "validation")
            )
            checkpoints = database.list_checkpoints(trial_id=trial.id)
            results.append(
                {
                    "trial": (trial.state, trial.length, trial.rung),
                    # A checkpoint that the kill interrupted is deleted, and saved again.
                    "saved": {
                        report.steps_completed: detcore.toy_state(report.uuid)
                        for report in checkpoints
                        if report.state == "COMPLETED"
                    },
                    "validation": validated,
                    # The driver of a trial adds the losses up in another order.
                    "training": [(step, round(loss["loss"], 9)) for step, loss in trained],
                }
            )
    return results


@pytest.mark.parametrize("slots", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_killed_script_resumes_like_a_trial(detcore: Detcore, folder: Path, slots: int) -> None:
    trial = detcore.config(**PERIODS)
    detcore.run_checked("run", trial, folder, "--slots", slots)
    script = detcore.config(
        **PERIODS,
        hyperparameters__kill_at=27,
        entrypoint="python3 train.py",
        max_restarts=1,
    )
    detcore.run_checked("run", script, folder, "--slots", slots)

    of_trial, of_script = records(detcore, 1), records(detcore, 2)
    assert of_script == of_trial
    (trial_results,) = of_script
    assert [step for step, _ in trial_results["validation"]] == [0, 10, 20, 30, 40]
    assert [step for step, _ in trial_results["training"]] == list(range(5, 45, 5))
    assert {15, 30, 40} <= trial_results["saved"].keys()
    with detcore.database() as database:
        assert len(database.list_runs(2)) == 2, "it was not killed"
    described = detcore.run_checked("trial", "describe", 2).stdout.splitlines()
    (compared,) = [line.strip() for line in described if "resumed at batch" in line]
    # The kill may interrupt the save after batch 20, which is the best one at that time.
    assert re.search(r"resumed at batch (15|20); batches .* are trained again: identical", compared)


def test_inexact_restore_ends_the_trial(detcore: Detcore, folder: Path) -> None:
    script = detcore.config(
        **PERIODS,
        hyperparameters__kill_at=23,
        hyperparameters__fault=1,
        entrypoint="python3 train.py",
        max_restarts=3,
    )
    failed = detcore.run_failing("run", script, folder)
    assert "model.weights was saved and not restored" in failed.output
    with detcore.database() as database:
        assert len(database.list_runs(1)) == 2, "it was started again"


@pytest.mark.soak
def test_search_trains_scripts_like_trials(detcore: Detcore, folder: Path) -> None:
    search = {
        "searcher": {
            "name": "adaptive_asha",
            "metric": "val_loss",
            "max_length": {"batches": 16},
            "max_trials": 4,
            "max_concurrent_trials": 1,
            "mode": "aggressive",
        },
        "hyperparameters": {
            "global_batch_size": 8,
            "learning_rate": {"type": "log", "minval": -4, "maxval": -1, "base": 10},
        },
    }
    for changes in ({}, {"entrypoint": "python3 train.py"}):
        detcore.run_checked("run", detcore.config(**search, **changes), folder)
    of_trials, of_scripts = records(detcore, 1), records(detcore, 2)
    assert of_scripts == of_trials
    lengths = {result["trial"][1] for result in of_scripts}
    assert len(lengths) > 1, "the search stopped no trial early"


class Weights:
    """A training state of one array."""

    def __init__(self) -> None:
        self.weights = np.zeros(3)

    def save(self, directory: Path) -> None:
        """Write the array."""
        (directory / "weights.json").write_text(json.dumps(self.weights.tolist()))


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PollingClock]:
    """Yield the clock of a standalone script that validates and saves at 10 of 20 steps."""
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "home"))
    config = load_mapping(
        {
            "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 20}},
            "scheduling_unit": 5,
            "min_validation_period": {"batches": 10},
        }
    ).config
    script = core.ScriptExperiment(config=config.model_dump(mode="json"))
    with core.init(script=script) as context, restore_latest_checkpoint(context) as folder:
        yield open_clock(
            context,
            framework="loop",
            checkpoint=folder,
            steps_per_epoch=None,
            code_files=[],
        )


def test_work_is_due_only_at_boundaries(clock: PollingClock) -> None:
    assert [(clock.due(step).step, clock.due(step).until) for step in (0, 1, 4)] == [
        (Step.TRAIN, 5)
    ] * 3
    assert clock.due(4, early=True).step is Step.REPORT
    clock.reported({"loss": 1.0})
    assert clock.due(4).step is Step.TRAIN
    assert clock.due(5).step is Step.REPORT


def test_skipped_boundary_is_an_error(clock: PollingClock) -> None:
    clock.due(0)
    with pytest.raises(ScheduleError, match="5"):
        clock.due(6)


def test_validation_requires_searcher_metric(clock: PollingClock) -> None:
    clock.due(5)
    clock.reported({})
    clock.due(10)
    clock.reported({})
    assert clock.due(10).step is Step.VALIDATE
    with pytest.raises(ConfigError, match=r"'loss', but the validation at step 10 returned: lost"):
        clock.validated({"lost": 1.0})
    assert clock.due(10).step is Step.VALIDATE, "a validation that failed counts as done"


def test_early_end_of_framework_saves_first(clock: PollingClock) -> None:
    assert clock.due(3).step is Step.TRAIN
    clock.request_stop()
    decisions = []
    while (decision := clock.due(3)).step is not Step.STOP:
        decisions.append(decision.step)
        if decision.step is Step.REPORT:
            clock.reported({"loss": 1.0})
        else:
            clock.save(Weights())
    assert decisions == [Step.REPORT, Step.CHECKPOINT]
    assert (decision.reason, clock.stopped) == ("stop requested", "stop requested")
    assert clock.due(3) == decision
