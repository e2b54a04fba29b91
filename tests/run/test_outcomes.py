"""Reports of a trial's outcome: while it runs, at its end, and in lists."""

from __future__ import annotations

import re
from pathlib import Path

from toy_command import MODEL_DIR, Detcore

SCRIPT = """
import math
from detcore import core

with core.init() as context:
    hparams = context.info.hparams
    stop_at, smoothing = hparams["stop_at"], hparams["smoothing"]
    for operation in context.searcher.operations():
        for step in range(1, operation.length + 1):
            loss = math.nan if step == hparams["nan_at"] else 1 / step
            context.train.report_training_metrics(step, {"loss": loss})
            context.train.report_validation_metrics(step, {"val_loss": 1 / step})
            if step == stop_at:
                raise SystemExit
        operation.report_completed(1 / step)
"""


def write_script(detcore: Detcore, **hparams: object) -> tuple[Path, Path]:
    """Write a search of a script; return its experiment file and its directory."""
    code = detcore.write_code("train.py", SCRIPT)
    path = detcore.config(
        entrypoint="python3 train.py",
        hyperparameters={"stop_at": 0, "nan_at": 0, "smoothing": 0.0, **hparams},
        searcher={"name": "grid", "metric": "val_loss", "max_length": {"batches": 10}},
    )
    return path, code


def test_halving_shows_waiting_and_stopped_trials(detcore: Detcore) -> None:
    searcher = {
        "name": "adaptive_asha", "metric": "val_loss", "max_trials": 4,
        "max_length": {"batches": 16}, "bracket_rungs": [2],
    }  # fmt: skip
    rate = {"type": "log", "minval": -3, "maxval": -1, "base": 10}
    hparams = {"global_batch_size": 8, "learning_rate": rate}
    path = detcore.config(searcher=searcher, hyperparameters=hparams)
    output = detcore("run", path, MODEL_DIR).stdout
    assert re.search(r"^trial 1: waiting for promotion, best val_loss ", output, re.M), output
    trials = detcore("experiment", "trials", 1).stdout.splitlines()[2:]
    stopped = [line for line in trials if "stopped by the search at 4 of 16 batches" in line]
    assert 0 < len(stopped) < len(trials), trials
    describe = detcore("trial", "describe", stopped[0].split()[0]).stdout
    assert re.search(r"state +stopped by the search at 4 of 16 batches\n", describe), describe


def test_early_end_and_nan_are_reported(detcore: Detcore) -> None:
    path, code = write_script(detcore, stop_at=5, nan_at=3)
    output = detcore("run", path, code).stdout
    assert "trial 1: the script ended at batch 5 of 10, before searcher.max_length\n" in output
    nan = "loss is NaN in the training report at batch 3, and training continues. To end a trial"
    assert output.count(nan) == 1
    assert "ended by its own code at 5 of 10 batches" in detcore("trial", "describe", 1).stdout


def test_equal_trials_are_reported(detcore: Detcore) -> None:
    smoothing = {"type": "categorical", "vals": [0.0, 0.1]}
    output = detcore("run", *write_script(detcore, smoothing=smoothing)).stdout
    assert "trials 1 and 2 differ in smoothing, but report exactly the same metrics" in output


def test_failure_is_reported_once(detcore: Detcore) -> None:
    path = detcore.config(entrypoint="model_def:Raises")
    finished = detcore("run", path, MODEL_DIR)
    assert finished.stdout.count("ZeroDivisionError: the user's own mistake") == 1
    assert "\nexperiment 1: error\n" in finished.stdout
    start = f"correct it and start again:  detcore run {path} {MODEL_DIR}\n"
    last = "otherwise, fix the cause, then try again:  detcore run --resume 1\n"
    assert finished.stdout.endswith(start + last)
    killed = detcore("run", detcore.config(entrypoint="kill -9 $$"), MODEL_DIR)
    assert killed.stdout.count("as after SIGKILL") == 1, killed.stdout


def test_wrong_metric_fails_once_with_command(detcore: Detcore) -> None:
    path = detcore.config(searcher__metric="val_los", max_restarts=5)
    finished = detcore("run", path, MODEL_DIR)
    assert finished.stdout.count("Did you mean 'val_loss'?") == 1, finished.stdout
    assert finished.stdout.count("detcore run") == 1, finished.stdout
    assert "a resumed experiment keeps its configuration" in finished.stdout
    last = finished.stdout.splitlines()[-1]
    assert last.endswith("detcore run --resume 1 --set searcher.metric=val_loss")
    assert detcore(*last.split("  detcore ")[1].split()).code == 0


def test_training_from_source_is_described(detcore: Detcore) -> None:
    path = detcore.config(searcher__max_length__batches=10)
    finished = detcore("run", path, MODEL_DIR, "--json")
    uuid = finished.summary["trials"][0]["latest_checkpoint"]
    refused = detcore("run", "--resume", 1, "--set", "searcher.max_length.batches=20")
    assert (
        "searcher.max_length is the additional length):  detcore run CONFIG.yaml" in refused.stderr
    )
    source = f"searcher.source_checkpoint_uuid={uuid}"
    output = detcore("run", path, MODEL_DIR, "--set", source).stdout
    assert (
        f"from checkpoint {uuid}, with batches counted from 0 (max_length is trained in" in output
    )
