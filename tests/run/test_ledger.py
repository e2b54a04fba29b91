"""Proof, after kills, that each record was trained on once in each epoch."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import time

from toy_command import MODEL_DIR, Detcore


def has_committed(detcore: Detcore, count: int) -> bool:
    return len(detcore.committed()) >= count


BATCHES_PER_EPOCH = 12


def test_killed_run_uses_each_record_once_per_epoch(detcore: Detcore) -> None:
    config = detcore.config(
        data_ledger=True, hyperparameters__pause_s=0.02, searcher__max_length={"epochs": 5}
    )
    dice = random.Random(5)
    process = detcore.start("run", config, MODEL_DIR)
    for kills in range(1, 5):
        detcore.wait_for(functools.partial(has_committed, detcore, kills))
        time.sleep(dice.uniform(0.0, 0.3))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        process = detcore.start("run", "--resume", 1)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stdout + stderr

    verified = detcore.run_checked("data", "verify", 1, "--json")
    (trial,) = json.loads(verified.stdout)["trials"]
    assert [epoch["num_records"] for epoch in trial["epochs"]] == [96] * 5


def test_ledger_reveals_restarted_data(detcore: Detcore) -> None:
    config = detcore.config(
        data_ledger=True,
        entrypoint="model_def:StartsDataOver",
        hyperparameters=detcore.slow(pause_from=10),
        searcher__max_length={"epochs": 4},
    )
    command: tuple[object, ...] = ("run", config, MODEL_DIR, "--json")
    steps = 0
    # Interrupted between two epochs, there would be nothing to find: then once more.
    while steps % BATCHES_PER_EPOCH == 0:
        process = detcore.start(*command)
        num_committed = len(detcore.committed())
        detcore.wait_for(functools.partial(has_committed, detcore, num_committed + 1))
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 75, stdout + stderr
        steps = json.loads(stdout.splitlines()[-1])["trials"][0]["steps_completed"]
        command = ("run", "--resume", 1, "--json")
    detcore.hurry()
    assert detcore("run", "--resume", 1).code == 0
    verified = detcore.run_failing("data", "verify", 1)
    assert "repeat a record within its epoch" in verified.stdout
