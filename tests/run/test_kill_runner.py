"""Runners that are killed with SIGKILL and resumed: no trial is lost or run twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from toy_command import MODEL_DIR, TESTS, Detcore

PROGRAM = TESTS / "support" / "killed_runner.py"


def killed(*arguments: object) -> dict[str, Any]:
    """Run the program; return its results."""
    result = subprocess.run(
        [sys.executable, str(PROGRAM), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return report


@pytest.mark.soak
def test_killed_search_has_same_result() -> None:
    # Every step takes a minute of a core: run the program without arguments.
    report = killed("--every", 4, "--storms", 1)
    assert report["wrong"] == {}
    assert len(report["tried"]) >= 40
    # The search has all there is: a promotion, a rejection, a crash, a trial that fails for good.
    expected = report["expected"]
    assert expected["state"] == "COMPLETED"
    kinds = {(event["type"], event.get("reason")) for event in expected["events"][1:]}
    assert kinds >= {("validated", None), ("exited", "invalid_hp"), ("exited", "errored")}
    assert max(rung for *_, rung, _, _ in expected["trials"]) >= 1


SEARCH: dict[str, Any] = {
    "hyperparameters": {
        "global_batch_size": 8,
        "learning_rate": {"type": "double", "minval": 0.01, "maxval": 0.1},
        "pause_s": 0.02,
    },
    "searcher": {
        "name": "adaptive_asha",
        "metric": "val_loss",
        "max_length": {"batches": 16},
        "max_trials": 6,
        "mode": "aggressive",
        "divisor": 2,
        "max_rungs": 3,
    },
    "max_restarts": 100,
    "min_validation_period": {"batches": 0},
    "min_checkpoint_period": {"batches": 4},
}


def outcome(detcore: Detcore, experiment_id: int) -> dict[str, Any]:
    """Return what must not depend on kills."""
    with detcore.database() as database:
        trials = database.list_trials(experiment_id)
        return {
            "state": database.get_experiment(experiment_id).state,
            "events": database.list_search_events(experiment_id),
            "trials": [
                (
                    trial.search_index,
                    trial.hparams,
                    trial.seed,
                    trial.length,
                    trial.rung,
                    trial.state,
                )
                for trial in trials
            ],
            "states": [
                detcore.toy_state(latest.uuid)
                for trial in trials
                if (latest := database.latest_checkpoint(trial.id)) is not None
            ],
        }


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    pids: list[int] = []
    for folder in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = [int(word) for word in (folder / "children").read_text().split()]
        except OSError:
            continue
        for child in children:
            pids += [child, *descendants(child)]
    return pids


@pytest.mark.soak
def test_real_processes_killed_at_random_moments(detcore: Detcore) -> None:
    config = detcore.config(**SEARCH)
    detcore.run_checked("run", config, MODEL_DIR, "--json")
    expected = outcome(detcore, 1)
    assert len(expected["trials"]) == 6

    dice = random.Random(4)
    process = detcore.start("run", config, MODEL_DIR)
    detcore.wait_for(lambda: (detcore.home / "detcore.db-locks" / "2").exists())
    for _ in range(12):
        time.sleep(dice.uniform(0.2, 2.0))
        workers = descendants(process.pid)
        if workers and dice.random() < 0.35:
            victim = dice.choice(workers)
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
        else:
            process.kill()
            process.communicate()
            process = detcore.start("run", "--resume", 2)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stdout + stderr
    assert outcome(detcore, 2) == expected
