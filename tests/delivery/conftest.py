"""A trial's log with a plugin that records its calls, and scripts with such a plugin."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from fake_distributions import write_distribution

from detcore.log.events import Event, TrainingReport, TrialFinished, TrialStarted, encode_event
from detcore.log.reading import event_log_path
from detcore.log.writing import EventLog
from detcore.plugins import OBSERVER_HOOKS, Observer, PluginEntry, PluginState
from detcore.plugins.delivery import _EventReader, list_waiting, write_run
from detcore.records import Database
from detcore.types import TrialInfo

# Records every call in a file. Its service is unreachable while a file "down" exists.
WATCHER = """
import json, os, signal, time
from pathlib import Path
from detcore import hookimpl
from detcore.errors import UnavailableError

FOLDER = Path(os.environ["WATCH_FOLDER"])
NAME = "{name}"

def note(hook, trial, event, **values):
    if (FOLDER / f"{{NAME}}.down").exists():
        raise UnavailableError("the tracker is down")
    line = dict(hook=hook, trial=trial.trial_id, run=trial.run_id, number=event.number,
                repeat=event.is_repeat, time=event.time, pid=os.getpid(), **values)
    with open(FOLDER / f"{{NAME}}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\\n")
    if (FOLDER / f"{{NAME}}.kill-at-{{event.number}}").exists():
        (FOLDER / f"{{NAME}}.kill-at-{{event.number}}").unlink()
        os.kill(os.getpid(), signal.SIGKILL)

@hookimpl
def detcore_trial_started(trial, event):
    note("started", trial, event, name=trial.config.get("name"))

@hookimpl
def detcore_training_metrics(trial, steps_completed, metrics, event):
    note("training", trial, event, steps=steps_completed, metrics=dict(metrics))

@hookimpl
def detcore_validation_metrics(trial, steps_completed, metrics, event):
    note("validation", trial, event, steps=steps_completed, metrics=dict(metrics))

@hookimpl
def detcore_checkpoint_saved(trial, checkpoint, event):
    note("checkpoint", trial, event, steps=checkpoint.steps_completed, uuid=checkpoint.uuid)

@hookimpl
def detcore_trial_finished(trial, state, error, event):
    note("finished", trial, event, state=state, error=error)
"""


def add(log: EventLog, event: Event) -> None:
    log.append(event.KIND, encode_event(event))


class Box:
    """One trial with its records, and a plugin in this process."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.database = Database.open(f"sqlite:///{home}/detcore.db")
        self.folder = self.add_trial()
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.failure: Callable[[str, Mapping[str, Any]], BaseException | None] = lambda *_: None
        self.logs: list[EventLog] = []

    def add_trial(self) -> Path:
        """Record a trial of a new experiment, and return its directory."""
        experiment = self.database.create_experiment(
            config={}, config_text=None, model_dir="/", name="test"
        )
        trial = self.database.create_trial(experiment_id=experiment, hparams={}, seed=0)
        folder = self.home / "experiments" / str(experiment) / "trials" / str(trial)
        self.database.set_trial_dir(trial, str(folder))
        folder.mkdir(parents=True)
        return folder

    def start_run(self, *, num_reports: int = 0, observers: Sequence[str] = ("watch",)) -> EventLog:
        """Start a run of the first trial, with its first events."""
        run_id = self.database.start_run(1, observers=observers)
        write_run(self.trial(run_id))
        log = EventLog(event_log_path(self.folder, run_id), trial_id=1, run_id=run_id)
        self.logs.append(log)
        add(log, TrialStarted(run_id=run_id))
        for step in range(1, num_reports + 1):
            self.report(log, step)
        return log

    def report(self, log: EventLog, step: int) -> None:
        add(log, TrainingReport(steps_completed=step, metrics={"loss": 1 / step}))

    def end_run(self, log: EventLog, state: str = "COMPLETED") -> None:
        add(log, TrialFinished(state=state))
        log.close()

    def open_runs(self) -> list[int]:
        """Runs with undelivered events."""
        return [cursor.run_id for cursor in self.database.list_cursors(plugin="watch")]

    def waiting(self, hooks: Sequence[str] = OBSERVER_HOOKS) -> int:
        """Number of undelivered events."""
        cursors = self.database.list_cursors(plugin="watch")
        return sum(map(len, list_waiting(self.home, cursors, hooks).values()))

    def observer(self, name: str = "watch") -> Observer:
        entry = PluginEntry(
            name=name, value="m", distribution=f"detcore-{name}", version="1.0", folder="",
            source=(), state=PluginState.LOADED,
        )  # fmt: skip
        callers = {hook: self._caller(hook) for hook in OBSERVER_HOOKS}
        return Observer(entry, cast(Any, callers))

    def _caller(self, hook: str) -> Callable[..., None]:
        def call(**arguments: Any) -> None:
            failure = self.failure(hook, arguments)
            if failure is not None:
                raise failure
            self.told.append((hook.removeprefix("detcore_"), arguments))

        return call

    def reader(self) -> _EventReader:
        return _EventReader(self.database, self.home, self.observer())

    def trial(self, run_id: int) -> TrialInfo:
        return TrialInfo(
            experiment_id=1, trial_id=1, run_id=run_id, trial_seed=0, hparams={}, config={},
            model_dir="/", trial_dir=str(self.folder),
        )  # fmt: skip

    def numbers(self) -> list[tuple[int, int, bool]]:
        """Run, number and repeat flag of each delivered event."""
        return [
            (arguments["trial"].run_id, arguments["event"].number, arguments["event"].is_repeat)
            for _, arguments in self.told
        ]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path / "home")
    yield box
    for log in box.logs:
        log.close()


@dataclasses.dataclass
class Watched:
    """Scripts and commands in an environment with plugins that observe."""

    folder: Path
    started: list[subprocess.Popen[str]] = dataclasses.field(default_factory=list)
    more: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def install(self, *names: str) -> None:
        for name in names:
            self.install_source(name, WATCHER.format(name=name))

    def install_source(self, name: str, source: str) -> None:
        write_distribution(
            self.folder / "site", f"detcore-{name}", modules={f"detcore_{name}.plugin": source}
        )

    def variables(self) -> dict[str, str]:
        toy = Path(__file__).parents[1] / "toy_plugin"
        return {
            **os.environ,
            "DETCORE_HOME": str(self.home),
            "PYTHONPATH": f"{self.folder / 'site'}{os.pathsep}{toy}",
            "WATCH_FOLDER": str(self.folder),
            "COLUMNS": "200",
            **self.more,
        }

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=self.variables(), cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(process)
        return process

    def run(self, *arguments: object, code: int = 0) -> tuple[str, str]:
        process = self.start(*arguments)
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == code, (process.returncode, stdout, stderr)
        return stdout, stderr

    def script(self, text: str, *, code: int = 0) -> tuple[str, str]:
        return self.run(self.write(text), code=code)

    def write(self, text: str) -> Path:
        path = self.folder / "train.py"
        path.write_text(text)
        return path

    def deliver(self, *arguments: object, code: int = 0) -> str:
        return self.run("-m", "detcore", "plugins", "deliver", *arguments, code=code)[0]

    def told(self, name: str = "watch") -> list[dict[str, Any]]:
        path = self.folder / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def down(self, name: str = "watch") -> Path:
        path = self.folder / f"{name}.down"
        path.touch()
        return path

    def open_cursors(self) -> list[str]:
        """Plugins that have not received all events of a run, once for each run."""
        with Database.open(f"sqlite:///{self.home}/detcore.db") as database:
            return [cursor.plugin for cursor in database.list_cursors()]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    for process in watched.started:
        with process:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.communicate()
