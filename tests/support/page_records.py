"""Records for tests of the web pages."""

from __future__ import annotations

import math
import random
import tempfile
from pathlib import Path
from typing import Any

from databases import take_lock

from detcore.checkpoint import CheckpointContext
from detcore.distributed import DistributedContext
from detcore.records import Database, MetricRecord
from detcore.storage import LocalStorage
from detcore.types import ExperimentState, TrialState

__all__ = ["HOSTILE", "add_search", "save_checkpoint"]

HOSTILE = (
    "{{ 7*7 }}</title></style><script>document.title='owned'</script>\"'>"
    "<img src=x onerror=alert(1)>\x00\u202e{% raw %}&amp;\U0001f600 \u05e9\u05dc\u05d5\u05dd "
    + "W"
    * 300
)
_HYPERPARAMETERS = {
    "optimizer": {
        "name": {"type": "categorical", "vals": ["sgd", "adam", "rmsprop"]},
        "rate": {"type": "log", "minval": -4, "maxval": -1, "base": 10},
    },
    "units": {"type": "int", "minval": 16, "maxval": 256},
    "dropout": {"type": "double", "minval": 0, "maxval": 0.5},
    "batch": 32,
}


def add_search(
    database: Database,
    num_trials: int,
    num_reports: int = 30,
    *,
    name: str = "digits",
    state: ExperimentState = ExperimentState.COMPLETED,
    **more: Any,
) -> int:
    """Record a finished random search. `more` extends the configuration."""
    chance = random.Random(1)
    experiment = database.create_experiment(
        config={
            "name": name,
            "entrypoint": "model_def:Digits",
            "hyperparameters": _HYPERPARAMETERS,
            "searcher": {
                "name": "random", "metric": "val_loss", "smaller_is_better": True,
                "max_trials": num_trials, "max_length": {"batches": 10 * num_reports},
            },
            "checkpoint_storage": {"type": "shared_fs", "host_path": "/nowhere"},
            **more,
        },
        config_text=None, model_dir="/home/ada/digits", name=name,
    )  # fmt: skip
    for _ in range(num_trials):
        rate, units = 10 ** chance.uniform(-4, -1), chance.randint(16, 256)
        optimizer, dropout = chance.choice(["sgd", "adam", "rmsprop"]), chance.uniform(0, 0.5)
        trial = database.create_trial(
            experiment_id=experiment, seed=7,
            hparams={
                "optimizer": {"name": optimizer, "rate": rate}, "units": units,
                "dropout": dropout, "batch": 32,
            },
        )  # fmt: skip
        run = database.start_run(trial)
        floor = 0.08 + 0.06 * (math.log10(rate) + 2.4) ** 2 + 0.05 * (optimizer == "sgd")
        floor += 3 / units * 0.5 + abs(dropout - 0.2) * 0.2
        speed = 1.5 + 60 * rate
        reports = []
        for number in range(1, num_reports + 1):
            loss = floor + 2.2 * math.exp(-number / num_reports * speed)
            noisy = loss * (1 + 0.04 * chance.gauss(0, 1))
            for kind, metrics in (
                ("validation", {"val_loss": noisy, "accuracy": 1 / (1 + noisy)}),
                ("training", {"loss": 0.9 * loss, "rate": rate}),
            ):
                reports.append(
                    MetricRecord(
                        trial_id=trial, run_id=run, kind=kind, steps_completed=10 * number,
                        metrics=metrics,
                    )
                )  # fmt: skip
        database.add_metrics(reports)
        if state is not ExperimentState.RUNNING:
            ended = TrialState.ERROR if state is ExperimentState.ERROR else TrialState(state.value)
            error = "ValueError: shapes (3, 2) and (4,) differ" if ended == "ERROR" else None
            database.set_trial_state(trial, ended, error=error)
    if state is ExperimentState.RUNNING:
        take_lock(database, experiment, Path(tempfile.mkdtemp()))
    else:
        error = f"{num_trials} trials failed" if state is ExperimentState.ERROR else None
        database.set_experiment_state(experiment, state, error=error)
    return experiment


def save_checkpoint(database: Database, trial_id: int, store: Path, files: Path, step: int) -> str:
    """Save a trial's checkpoint with two files in the storage directory `store`."""
    files.mkdir(exist_ok=True)
    (files / "weights.bin").write_bytes(bytes(range(256)) * 40)
    (files / "state.json").write_text("{}\n")
    context = CheckpointContext(
        storage=LocalStorage(store), distributed=DistributedContext(), database=database,
        trial_id=trial_id,
    )  # fmt: skip
    return context.upload(files, {"steps_completed": step})
