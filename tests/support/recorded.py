"""Records as training writes them, and the commands that read them."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result
from databases import take_lock
from terminal import on_a_terminal

from detcore.cli import CliContext, main
from detcore.environment import read_environment
from detcore.log.events import CheckpointCommitted, CheckpointStarted
from detcore.records import Database, MetricRecord

__all__ = ["CONFIG", "Records"]

CONFIG: dict[str, Any] = {
    "entrypoint": "model_def:Digits",
    "searcher": {
        "name": "single",
        "metric": "val_loss",
        "smaller_is_better": True,
        "max_length": {"epochs": 3},
    },
    "min_validation_period": {"batches": 10},
    "min_checkpoint_period": {"batches": 0},
    "checkpoint_storage": {"type": "s3", "bucket": "runs", "secret_key": "hunter2"},
    "reproducibility": {"experiment_seed": 7},
}

_ABANDON = """
import sys
from detcore.records import Database

with Database.open(sys.argv[1]) as database:
    number = database.create_experiment(config={}, config_text=None, model_dir="/m", name="n")
    database.start_run(database.create_trial(experiment_id=number, hparams={}, seed=0))
    print(number)
"""


@dataclasses.dataclass
class Records:
    """A home with records, and commands that read them."""

    home: Path
    database: Database

    @classmethod
    @contextlib.contextmanager
    def create(cls, folder: Path) -> Iterator[Records]:
        """Yield the records of a new home."""
        home = folder / "home"
        with Database.open(f"sqlite:///{home / 'detcore.db'}") as database:
            yield cls(home, database)

    def __call__(self, *arguments: object) -> Result:
        obj = CliContext(environment=read_environment({"DETCORE_HOME": str(self.home)}))
        parent = click.Context(main, info_name="detcore", obj=obj)
        name, *words = map(str, arguments)
        command = main.get_command(parent, name)
        assert command is not None
        return CliRunner().invoke(command, words, obj=obj, parent=parent)

    def data(self, *arguments: object) -> Any:
        result = self(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def csv(self, *arguments: object) -> list[dict[str, str]]:
        """Run a command with ``--csv``, and return its rows by column name."""
        result = self(*arguments, "--csv")
        assert result.exit_code == 0, result.output
        return list(csv.DictReader(io.StringIO(result.stdout_bytes.decode(), newline="")))

    def on_a_terminal(
        self, *arguments: object, variables: Mapping[str, str] | None = None, **options: Any
    ) -> tuple[int, str, str]:
        """Run a command on a terminal. See `terminal.on_a_terminal`."""
        return on_a_terminal(
            [sys.executable, "-m", "detcore", *map(str, arguments)],
            variables={"DETCORE_HOME": str(self.home), **(variables or {})},
            folder=self.home,
            **options,
        )

    def experiment(self, config: dict[str, Any] | None = None, name: str = "digits") -> int:
        return self.database.create_experiment(
            config=CONFIG if config is None else config,
            config_text=None,
            model_dir="/code",
            name=name,
        )

    def trial(self, experiment_id: int, **hparams: object) -> int:
        return self.database.create_trial(experiment_id=experiment_id, hparams=hparams, seed=11)

    def report(self, trial_id: int, kind: str, step: int, **metrics: Any) -> None:
        run_id = self.database.get_trial(trial_id).run_id
        self.database.add_metrics(
            [
                MetricRecord(
                    trial_id=trial_id,
                    run_id=run_id,
                    kind=kind,
                    steps_completed=step,
                    metrics=metrics,
                )
            ]
        )

    def checkpoint(self, trial_id: int, step: int, uuid: str, *, size: int = 1500) -> str:
        """Record a checkpoint without files."""
        self.database.record_checkpoint(
            CheckpointStarted(uuid=uuid, storage_url="s3://runs", steps_completed=step),
            trial_id=trial_id,
        )
        self.database.record_checkpoint(
            CheckpointCommitted(uuid=uuid, metadata={}, resources={"w": size}, steps_completed=step)
        )
        return uuid

    def abandon(self) -> int:
        """Record a running experiment with a running trial whose process has exited."""
        command = [sys.executable, "-c", _ABANDON, self.database.url]
        result = subprocess.run(command, check=True, capture_output=True, text=True)
        return int(result.stdout)

    def folder(self, trial_id: int) -> Path:
        """Create a trial's directory."""
        trial = self.database.get_trial(trial_id)
        folder = self.home / "experiments" / str(trial.experiment_id) / "trials" / str(trial_id)
        folder.mkdir(parents=True)
        self.database.set_trial_dir(trial_id, str(folder))
        return folder

    def runs(self, experiment_id: int) -> int:
        """Hold the runner lock of an experiment until this process exits, and return its id."""
        take_lock(self.database, experiment_id, self.home)
        return experiment_id

    def trained(self) -> int:
        """Record a trial with three validations and one checkpoint."""
        trial = self.trial(self.runs(self.experiment()), learning_rate=0.5, layers={"count": 2})
        self.database.start_run(trial)
        for step in (10, 20, 30):
            self.report(trial, "training", step, loss=1 / step)
            self.report(trial, "validation", step, val_loss=abs(step - 20) + 0.25, accuracy=0.5)
        self.checkpoint(trial, 30, "abcd1234-full-uuid")
        return trial
