"""Trials for launchers, without a runner: started, answered, and closed by hand."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from detcore.config import ExperimentConfig
from detcore.database import Database
from detcore.launch import LocalLauncher, WorkerEvent, WorkerGroup
from detcore.types import TrialInfo

__all__ = ["Trials", "finish", "wait_for_event"]


class Trials:
    """An experiment whose trials a test starts one by one.

    Args:
        home: Folder for the records.
        model_dir: Folder of the trial's code.
        config: The experiment's configuration; defaults are filled in.
    """

    def __init__(self, home: Path, model_dir: Path, config: Mapping[str, Any]) -> None:
        self.home = home
        self.output: list[tuple[str, str]] = []
        self._model_dir = model_dir
        self._plain = ExperimentConfig.model_validate(config).model_dump(mode="json")
        home.mkdir(exist_ok=True)
        self._url = f"sqlite:///{home / 'detcore.db'}"
        self._database = Database.open(self._url)
        self._experiment_id = self._database.create_experiment(
            config=self._plain, config_text=None, model_dir=str(model_dir), name="trials"
        )

    def info(self, **hparams: Any) -> TrialInfo:
        """Record a new trial."""
        trial_id = self._database.create_trial(
            experiment_id=self._experiment_id, hparams=hparams, seed=11
        )
        folder = self.home / "trials" / str(trial_id)
        self._database.set_trial_dir(trial_id, str(folder))
        return TrialInfo(
            experiment_id=self._experiment_id,
            trial_id=trial_id,
            run_id=self._database.start_run(trial_id),
            trial_seed=11,
            hparams=hparams,
            config=self._plain,
            model_dir=str(self._model_dir),
            trial_dir=str(folder),
        )

    def start(
        self, launcher: LocalLauncher, *, keep_open: tuple[int, ...] = (), **hparams: Any
    ) -> WorkerGroup:
        """Start a new trial."""
        return launcher.start(
            self.info(**hparams),
            home=self.home,
            keep_open=keep_open,
            on_output=lambda rank, stream, line: self.output.append((stream, line)),
        )

    def close(self) -> None:
        self._database.close()


def finish(group: WorkerGroup) -> int:
    """Answer a trial that it is to end, and wait for that; return its exit code."""
    for event in _events(group):
        if event.type == "searcher_completed":
            group.reply(type="end")
    return group.close()


def _events(group: WorkerGroup) -> Iterator[WorkerEvent]:
    deadline = time.monotonic() + 120
    while group.is_alive:
        select.select([group.fileno()], [], [], 0.1)
        yield from group.poll()
        if time.monotonic() > deadline:
            group.kill()
            group.close()
            raise TimeoutError("the trial did not end")


def wait_for_event(happened: Callable[[], bool], timeout_s: float = 60) -> None:
    """Wait until something has happened."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen")
        time.sleep(0.01)
