"""Trials in MLflow are complete, in order and without duplicates, despite kills."""

from __future__ import annotations

import json
from typing import Any

Server = Any
Training = Any

COMPLETE_SCRIPT = """
from detcore import core
hparams = {"lr": 0.1, "layers": {"count": 3, "sizes (wide)": [8, 4]}}
with core.init(script=core.ScriptExperiment(hparams=hparams)) as context:
    context.train.report_training_metrics(1, {"loss": 0.5, "top@5": float("inf")})
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "weights").write_text("abc")
    context.train.report_validation_metrics(1, {"accuracy": 0.25, "val_loss": float("nan")})
"""
STEP_SCRIPT = """
import time
from detcore import core
with core.init(resume=True) as context:
    step = context.info.steps_completed
    while step < LAST:
        step += 1
        context.train.report_training_metrics(step, {"loss": 1 / step})
        if step % 25 == 0:
            with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
                (path / "weights").write_text("w")
        print(step, flush=True)
        time.sleep(0.005)
"""


def read_until(process: Any, step: int) -> None:
    for line in process.stdout:
        if int(line) >= step:
            return
    raise AssertionError(f"the script ended before step {step}: {process.stderr.read()}")


def test_trial_is_mirrored(server: Server, training: Training) -> None:
    server.start()
    training.variables["DETCORE_MLFLOW_UPLOAD"] = "1"
    training.script(COMPLETE_SCRIPT)
    training.deliver()  # remaining events on a slow machine
    ((run_id, status),) = server.runs(training.folder.name)
    assert status == "FINISHED"
    assert server.pairs("params", run_id) == {
        "lr": "0.1", "layers.count": "3", "layers.sizes _wide_": "[8, 4]"
    }  # fmt: skip
    ((step, loss, moment),) = server.metrics(run_id, "loss")
    assert [(step, loss, moment)] == training.reports()
    assert server.metrics(run_id, "val_accuracy")[0][:2] == (1, 0.25)
    assert server.rows("SELECT is_nan FROM metrics WHERE key = 'val_loss'") == [(1,)]
    assert server.metrics(run_id, "top_5")[0][1] > 1e300
    tags = server.pairs("tags", run_id)
    uuid = tags["detcore.latest_checkpoint"]
    note = json.loads(tags[f"detcore.checkpoint.{uuid}"])
    assert note["url"].endswith(uuid)
    assert note["steps_completed"] == 1
    assert (tags["detcore.state"], tags["detcore.trial_id"]) == ("COMPLETED", "1")
    (weights,) = server.artifacts.rglob(f"checkpoints/{uuid}/weights")
    assert weights.read_text() == "abc"
    ((start, end),) = server.rows(
        "SELECT start_time, end_time FROM runs WHERE run_uuid = ?", run_id
    )
    assert start <= moment <= end


def test_resumed_trial_is_one_run(server: Server, training: Training) -> None:
    server.start()
    script = training.write(STEP_SCRIPT.replace("LAST", "50").replace("print(step, flush=True)", """
        if step == 30 and context.info.run_id == 1: raise SystemExit(75)
        if step == 45 and context.info.run_id == 2: raise ValueError("no")
    """.strip()))  # fmt: skip
    states = []
    for code in (75, 1, 0):
        training.run(script, code=code)
        training.deliver()
        ((run_id, status),) = server.runs(training.folder.name)
        states.append((status, server.pairs("tags", run_id)["detcore.error"]))
    assert states == [("SCHEDULED", "-"), ("FAILED", "ValueError: no"), ("FINISHED", "-")]
    assert server.metrics(run_id, "loss") == training.reports()
    assert server.pairs("tags", run_id)["detcore.run_id"] == "3"


def test_trials_of_two_homes_are_separate_runs(server: Server, training: Training) -> None:
    server.start()
    training.script(COMPLETE_SCRIPT)
    training.deliver()
    training.variables["DETCORE_HOME"] = str(training.folder / "another")
    training.script(COMPLETE_SCRIPT)
    training.deliver()
    assert [status for _, status in server.runs(training.folder.name)] == ["FINISHED"] * 2


def test_restarted_server_receives_all_events(server: Server, training: Training) -> None:
    server.start()
    process = training.start(training.write(STEP_SCRIPT.replace("LAST", "600")))
    read_until(process, 100)
    server.kill()
    read_until(process, 300)
    assert process.poll() is None
    server.start()
    _, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    training.deliver()
    ((run_id, status),) = server.runs(training.folder.name)
    assert status == "FINISHED"
    reports = training.reports()
    assert [step for step, _, _ in reports] == list(range(1, 601))
    assert server.metrics(run_id, "loss") == reports  # in order, once


def test_events_are_delivered_after_an_outage(server: Server, training: Training) -> None:
    server.kill()
    _, stderr = training.script(STEP_SCRIPT.replace("LAST", "60"))
    assert "is unreachable: " in stderr
    (row,) = training.deliver(code=1)
    assert row["waiting"] == 64  # start, 60 reports, two checkpoints, end
    assert "is unreachable" in row["note"]
    server.start()
    (row,) = training.deliver()
    assert (row["delivered"], row["waiting"]) == (64, 0)
    ((run_id, status),) = server.runs(training.folder.name)
    assert status == "FINISHED"
    assert server.metrics(run_id, "loss") == training.reports()


def test_repeated_kills_lose_and_duplicate_nothing(server: Server, training: Training) -> None:
    server.start()
    script = training.write(STEP_SCRIPT.replace("LAST", "200"))
    for stop_at in (30, 60, 61, 110, 150):
        process = training.start(script)
        if stop_at == 61:
            server.kill()
        read_until(process, stop_at)
        process.kill()
        process.communicate()
        if stop_at == 110:
            server.start()
    training.run(script)
    training.deliver()
    ((run_id, status),) = server.runs(training.folder.name)
    assert status == "FINISHED"
    assert server.metrics(run_id, "loss") == training.reports()
    tags = server.pairs("tags", run_id)
    steps = [
        json.loads(value)["steps_completed"]
        for key, value in tags.items()
        if key.startswith("detcore.checkpoint.")
    ]
    assert set(steps) == set(range(25, 201, 25))


def test_events_wait_for_a_tracking_uri(server: Server, training: Training) -> None:
    del training.variables["MLFLOW_TRACKING_URI"]
    _, stderr = training.script(COMPLETE_SCRIPT)
    assert "MLFLOW_TRACKING_URI is not set" in stderr
    (row,) = training.deliver(code=1)
    assert row["waiting"] == 5
    server.start()
    training.variables["MLFLOW_TRACKING_URI"] = server.uri
    (row,) = training.deliver()
    assert (row["delivered"], row["waiting"]) == (5, 0)
