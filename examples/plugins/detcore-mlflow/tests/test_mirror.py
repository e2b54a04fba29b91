"""Trials in MLflow: everything, in order, once; whatever is killed."""

from __future__ import annotations

import json
from typing import Any

Server = Any
Training = Any

WHOLE = """
from detcore import core
hparams = {"lr": 0.1, "layers": {"count": 3, "sizes (wide)": [8, 4]}}
with core.init(script=core.ScriptExperiment(hparams=hparams)) as context:
    context.train.report_training_metrics(1, {"loss": 0.5, "top@5": float("inf")})
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "weights").write_text("abc")
    context.train.report_validation_metrics(1, {"accuracy": 0.25, "val_loss": float("nan")})
"""
STEPS = """
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
    raise AssertionError(f"it ended before step {step}: {process.stderr.read()}")


def test_a_trial_is_mirrored(server: Server, training: Training) -> None:
    server.start()
    training.variables["DETCORE_MLFLOW_UPLOAD"] = "1"
    training.script(WHOLE)
    training.deliver()  # what a slow machine left
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


def test_a_trial_that_fails_and_goes_on_is_one_run(server: Server, training: Training) -> None:
    server.start()
    script = training.write(STEPS.replace("LAST", "50").replace("print(step, flush=True)", """
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


def test_two_homes_do_not_meet_in_one_experiment(server: Server, training: Training) -> None:
    server.start()
    training.script(WHOLE)
    training.deliver()
    training.variables["DETCORE_HOME"] = str(training.folder / "another")
    training.script(WHOLE)
    training.deliver()
    assert [status for _, status in server.runs(training.folder.name)] == ["FINISHED"] * 2


def test_a_server_killed_in_the_middle_and_started_again_misses_nothing(
    server: Server, training: Training
) -> None:
    server.start()
    process = training.start(training.write(STEPS.replace("LAST", "600")))
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


def test_a_server_that_is_down_for_the_whole_run_is_told_later(
    server: Server, training: Training
) -> None:
    server.kill()
    _, stderr = training.script(STEPS.replace("LAST", "60"))
    assert "cannot be reached: " in stderr
    (row,) = training.deliver(code=1)
    assert row["waiting"] == 64  # start, 60 reports, two checkpoints, end
    assert "cannot be reached" in row["note"]
    server.start()
    (row,) = training.deliver()
    assert (row["delivered"], row["waiting"]) == (64, 0)
    ((run_id, status),) = server.runs(training.folder.name)
    assert status == "FINISHED"
    assert server.metrics(run_id, "loss") == training.reports()


def test_workers_and_server_killed_again_and_again_lose_and_double_nothing(
    server: Server, training: Training
) -> None:
    server.start()
    script = training.write(STEPS.replace("LAST", "200"))
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


def test_nothing_waits_for_ever_where_it_is_not_said_where_to(
    server: Server, training: Training
) -> None:
    del training.variables["MLFLOW_TRACKING_URI"]
    _, stderr = training.script(WHOLE)
    assert "MLFLOW_TRACKING_URI is not set" in stderr
    (row,) = training.deliver(code=1)
    assert row["waiting"] == 5
    server.start()
    training.variables["MLFLOW_TRACKING_URI"] = server.uri
    (row,) = training.deliver()
    assert (row["delivered"], row["waiting"]) == (5, 0)
