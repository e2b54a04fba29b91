"""Tests of the page while ``detcore run`` trains with real workers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from page_client import PageClient
from running_server import RunningServer

SCRIPT = """
import time
from detcore import core

def fail(rate):
    raise ValueError(f"{rate} is too large")

with core.init() as context:
    rate = context.info.hparams["rate"]
    for operation in context.searcher.operations():
        for step in range(1, operation.length + 1):
            time.sleep(0.05)
            if step % 10 == 0:
                context.train.report_training_metrics(step, {"loss": 1 / step})
            if step == 40 and rate > 1:
                fail(rate)
            if step == 60:
                with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    (path / "state").write_text("x")
                    time.sleep(3)
        context.train.report_validation_metrics(step, {"val_loss": rate})
        operation.report_completed(rate)
"""
CONFIG = """
name: watched
entrypoint: python3 train.py
max_restarts: 0
hyperparameters: {rate: {type: categorical, vals: [0.5, 2.0]}}
searcher: {name: grid, metric: val_loss, max_length: {batches: 1200}}
"""


@pytest.mark.soak
def test_watch_run_and_kill_trial(server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "run.yaml").write_text(CONFIG)
    client = PageClient(server.url)
    client.log_in()
    env = {**os.environ, "DETCORE_HOME": str(server.home)}
    command = [sys.executable, "-m", "detcore", "run", "run.yaml", "."]
    runner = subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    phases: dict[str, set[str]] = {}
    text = ""
    end = time.monotonic() + 120
    try:
        while runner.poll() is None:
            assert time.monotonic() < end, phases
            time.sleep(0.3)
            if client.ask("GET", "/ui/experiments/1").status != 200:
                continue  # it is not recorded yet
            page = client.page("/ui/experiments/1")
            text = page.text if "free at" in page.text else text
            for row in page.rows:
                if len(row) == 9 and row[0].startswith("trial "):
                    phases.setdefault(row[0].split()[1], set()).add(row[1])
            for trial, states in phases.items():
                if "saving" in states and "killed" not in states:
                    form = {"action": "kill"}
                    assert client.ask("POST", f"/ui/trials/{trial}/control", form).status == 303
                    states.add("killed")
    finally:
        runner.kill()
        runner.wait()
    killed = [states for states in phases.values() if "killed" in states]
    assert killed
    assert killed[0] >= {"training", "saving"}
    assert "free at" in text
    page = client.page("/ui/experiments/1")
    failure = page.text[page.text.index("Last failure: trial") :]
    assert "in fail" in failure
    assert "ValueError: 2.0 is too large" in failure
