"""Scripts as trials: they receive requests to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from toy_command import Detcore

SCRIPT = """
import time
from detcore import core

with core.init() as context:
    print("source", context.info.source_checkpoint, flush=True)
    context.train.report_training_metrics(1, {"loss": 1.0})
    while not context.preempt.should_preempt():
        time.sleep(0.05)
    time.sleep(0.5)
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "state").write_text("saved")
    raise SystemExit(75)
"""


@pytest.mark.parametrize("entrypoint", ["python3 train.py", ["python3", "train.py"]])
def test_signal_reaches_script(detcore: Detcore, entrypoint: object) -> None:
    folder = detcore.write_code("train.py", SCRIPT)
    process = detcore.start("run", detcore.config(entrypoint=entrypoint), folder)
    # Before its first report it may not have taken hold of signals yet.
    detcore.wait_for(
        lambda: any("loss" in path.read_text() for path in detcore.home.rglob("events-*.jsonl"))
    )
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stdout + stderr
    assert "source None" in stdout
    assert len(detcore.committed()) == 1


READS = """
from detcore import core

with core.init() as context:
    hparams = context.info.hparams
    rate, dropout = hparams["learning_rate"], hparams.get("dropout", 0.1)
    for operation in context.searcher.operations():
        context.train.report_validation_metrics(operation.length, {"val_loss": rate * dropout})
        operation.report_completed(rate * dropout)
"""


def test_script_reports_misspelt_hyperparameters_once(detcore: Detcore) -> None:
    folder = detcore.write_code("train.py", READS)
    hparams = {"learning_rate": 0.5, "droput": 0.3}
    config = detcore.config(entrypoint="python3 train.py", hyperparameters=hparams, max_restarts=1)
    finished = detcore.run_checked("run", config, folder, "--set", "hyperparameters.dropuot=0.2")
    warning = "is not in the code of train.py: did you mean 'dropout', which is?"
    assert finished.stdout.count(f"hyperparameters.droput {warning}") == 1
    assert finished.stdout.count(f"command line:1:17: note: hyperparameters.dropuot {warning}") == 1
    assert finished.stdout.count("did you mean") == 2


NAN = """
from detcore import core

with core.init() as context:
    for step in range(1, 9):
        loss = float("nan") if step == 5 else 1.0 / step
        context.train.report_KIND_metrics(step, {"loss": loss, "size": 3})
        print("reported", step, flush=True)
"""


@pytest.mark.parametrize("kind", ["training", "validation"])
def test_stop_at_nan_ends_script(detcore: Detcore, kind: str) -> None:
    folder = detcore.write_code("train.py", NAN.replace("KIND", kind))
    config = detcore.config(entrypoint="python3 train.py", stop_at_nan=True, max_restarts=3)
    finished = detcore.run_failing("run", config, folder)
    error = f"NotANumberError: loss is NaN in the {kind} report at batch 5, and stop_at_nan is set"
    assert finished.stdout.count(error) == 1
    assert "not started again: it would fail in the same way each time" in finished.stdout
    assert finished.stdout.count("reported 4\n") == 1
    assert "reported 5\n" not in finished.stdout
    with detcore.database() as database:
        reports = database.metrics(1, kind)
    assert [report.steps_completed for report in reports] == [1, 2, 3, 4, 5]


RESTARTS = """
from detcore import core

with core.init() as context:
    latest, start = context.info.latest_checkpoint, 0
    if RESTORES and latest is not None:
        with context.checkpoint.restore_path(latest) as path:
            start = int((path / "state").read_text())
    for step in range(start + 1, 13):
        if step == 7 and context.info.run_id == 1:
            raise OSError("the network is down")
        context.train.report_training_metrics(step, {"loss": 1.0 / step})
        if step % 5 == 0:
            with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
                (path / "state").write_text(str(step))
    context.train.report_validation_metrics(12, {"val_loss": 0.5})
"""


@pytest.mark.parametrize("restores", [False, True])
def test_script_ignoring_checkpoint_is_warned_once(detcore: Detcore, restores: bool) -> None:
    folder = detcore.write_code("train.py", RESTARTS.replace("RESTORES", str(restores)))
    finished = detcore.run_checked(
        "run", detcore.config(entrypoint="python3 train.py", max_restarts=1), folder
    )
    assert "It starts again from its latest checkpoint (restart 1 of 1)" in finished.stdout
    assert "from batch 5 (checkpoint " in finished.stdout
    warning = "restored no checkpoint and reports batch 1: it trains from the start again"
    assert finished.stdout.count(warning) == (0 if restores else 1)
    line = "with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:"
    assert finished.stdout.count(line) == (0 if restores else 1)


def test_unreported_searcher_metric_is_noticed(detcore: Detcore) -> None:
    folder = detcore.write_code("train.py", READS)
    hparams = {"learning_rate": 0.5, "dropout": 0.3}
    config = detcore.config(
        entrypoint="python3 train.py", hyperparameters=hparams, searcher__metric="val_los"
    )
    finished = detcore.run_checked("run", config, folder)
    notice = (
        "searcher.metric is 'val_los', but the validations of trial 1 report: val_loss. The best"
    )
    assert finished.stdout.count(notice) == 1


def test_standalone_script_is_not_resumed_by_runner(detcore: Detcore) -> None:
    script = "from detcore import core\nwith core.init() as context:\n    pass\n"
    home = {"DETCORE_HOME": str(detcore.home)}
    subprocess.run([sys.executable, "-c", script], env={**os.environ, **home}, check=True)
    finished = detcore.run_failing("run", "--resume", 1)
    assert "recorded by a standalone script" in finished.stderr
    assert "Start the script again" in finished.stderr
