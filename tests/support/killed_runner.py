"""Program that kills a runner before each of its steps and resumes it.

To simulate a kill before each step, one run copies its files before each step, as SIGKILL would
leave them, and the copies are resumed. Storms of kills use real kills. Each run is a separate
process, forked from this process after all imports.

Trials are objects instead of processes, and act immediately. Their checkpoints and metrics are
real. A step is a call to the record store, the storage or the launcher.

Prints one JSON object: the number of steps, and what differed from a run that was not killed.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detcore.checkpoint import CheckpointContext
from detcore.config import load_config
from detcore.distributed import DistributedContext
from detcore.environment import read_environment
from detcore.launch import WorkerEvent
from detcore.plugins import PluginManager
from detcore.records import Database, MetricRecord
from detcore.run import (
    RunSettings,
    named_parts,
    resume_experiment,
    start_experiment,
    supervisor,
)
from detcore.storage import open_storage
from detcore.types import TrialInfo

EXPERIMENT = """
name: killed
entrypoint: model_def:Trial
hyperparameters:
  global_batch_size: 1
  rate: {type: double, minval: 0.0, maxval: 1.0}
searcher:
  name: adaptive_asha
  metric: loss
  max_length: {batches: 16}
  max_trials: 5
  mode: aggressive
  divisor: 2
  max_rungs: 3
  max_concurrent_trials: 2
max_restarts: 2
reproducibility: {experiment_seed: 5}
"""


def behaviour(rate: float) -> str:
    """Return the behaviour of trials with a rate."""
    names = {10: "rejects", 57: "crashes once", 74: "crashes", 97: "stops"}
    return names.get(int(rate * 100), "trains")


class Steps:
    """Counts steps.

    Args:
        before: Called before each step with its number, from 0.
    """

    def __init__(self, before: Callable[[int], None]) -> None:
        self.done = 0
        self._before = before
        self._lock = threading.RLock()
        self.are_counted = True

    def step(self) -> None:
        if self.are_counted:
            with self._lock:  # runner threads share the database
                self._before(self.done)
                self.done += 1

    def count_calls(self, kind: type) -> None:
        """Count the calls of all public methods of a class."""
        for base in kind.__mro__:
            for name, method in list(vars(base).items()):
                if not name.startswith("_") and callable(method) and base is not object:
                    setattr(base, name, self._counted(method))

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.step()
            return method(*arguments, **named)

        return call


class Group:
    """Workers of a trial that act immediately."""

    first_failed = None

    def __init__(self, info: TrialInfo, home: Path, steps: Steps, plugins: PluginManager) -> None:
        self._info = info
        self._plugins = plugins
        self._home = home
        self._steps = steps
        self._read_fd, self._write_fd = os.pipe()
        os.write(self._write_fd, b"\0")
        self._events: list[WorkerEvent] = []
        self._code: int | None = None
        self.pid = os.getpid()
        self.pids = [self.pid]
        self.is_alive = True
        does = behaviour(info.hparams["rate"])
        if does == "rejects":
            self._code = 65
        elif does == "stops":
            self._code = 0
        elif does == "crashes" or (does == "crashes once" and info.run_id == 1):
            self._code = 1
        else:
            self._train(int(info.searcher_length or 0))

    def _train(self, length: int) -> None:
        info = self._info
        metric = info.hparams["rate"] + 1 / length
        self._steps.are_counted = False
        database = Database.open(f"sqlite:///{self._home / 'detcore.db'}")
        storage = open_storage(None, home=self._home, plugins=self._plugins)
        if length > info.steps_completed:
            database.add_metrics(
                [
                    MetricRecord(
                        trial_id=info.trial_id,
                        kind="validation",
                        steps_completed=length,
                        run_id=info.run_id,
                        metrics={"loss": metric},
                    )
                ]
            )
            context = CheckpointContext(
                storage=storage,
                distributed=DistributedContext(),
                database=database,
                trial_id=info.trial_id,
            )
            with context.store_path({"steps_completed": length}) as (folder, _):
                (folder / "length").write_text(str(length))
        storage.close()
        database.close()
        self._steps.are_counted = True
        fields = {"length": length, "metric": metric}
        self._events.append(WorkerEvent("searcher_completed", fields))

    def fileno(self) -> int:
        return self._read_fd

    def poll(self) -> list[WorkerEvent]:
        events, self._events = self._events, []
        self.is_alive = self._code is None
        return events

    def reply(self, **fields: Any) -> None:
        self._steps.step()
        if fields["type"] == "end":
            self._code = 0
        else:
            self._train(fields["length"])

    def signal(self, number: int = signal.SIGTERM) -> None:
        self._code = 75

    def kill(self) -> None:
        self._code = -signal.SIGKILL

    def close(self) -> int:
        os.close(self._read_fd)
        os.close(self._write_fd)
        return self._code or 0


class Launcher:
    """Starts trials that act immediately."""

    def __init__(self, steps: Steps, plugins: PluginManager) -> None:
        self._steps = steps
        self._plugins = plugins

    def start(self, info: TrialInfo, *, home: Path, **_: Any) -> Group:
        self._steps.step()
        group = Group(info, home, self._steps, self._plugins)
        self._steps.step()
        return group

    def close(self) -> None:
        pass


class Listener:
    """Ignores all events."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def run(folder: Path, steps: Steps) -> None:
    """Start or resume the experiment."""
    environment = read_environment({"DETCORE_HOME": str(folder)})
    plugins = PluginManager(environment)
    settings = RunSettings(environment=environment, plugins=plugins, listener=Listener())
    vars(named_parts)["choose_launcher"] = lambda *_, **__: Launcher(steps, plugins)
    vars(supervisor)["_INITIAL_BACKOFF_S"] = 0.0
    with Database.open(environment.database_url) as database:
        experiments = database.list_experiments()
    steps.count_calls(Database)
    steps.count_calls(type(open_storage(None, home=folder, plugins=plugins)))
    if experiments:
        resume_experiment(experiments[0].id, settings)
        return
    file = folder / "experiment.yaml"
    file.write_text(EXPERIMENT)
    start_experiment(load_config(file), folder, settings)


def outcome(folder: Path) -> dict[str, Any]:
    """Return all results that must not depend on kills."""
    environment = read_environment({"DETCORE_HOME": str(folder)})
    with Database.open(environment.database_url) as database:
        (experiment,) = database.list_experiments()
        trials = database.list_trials(experiment.id)
        checkpoints = {
            str(trial.search_index): sorted(
                record.steps_completed
                for record in database.list_checkpoints(trial_id=trial.id)
                if (folder / "checkpoints" / record.uuid / "manifest.json").exists()
            )
            for trial in trials
        }
        # A killed storage probe leaves a file, which a start removes after a day.
        folders = [path for path in (folder / "checkpoints").iterdir() if path.is_dir()]
        return {
            "state": experiment.state.value,
            "progress": experiment.progress,
            "events": database.list_search_events(experiment.id),
            "trials": [
                [t.search_index, t.hparams, t.seed, t.length, t.rung, t.state.value, t.error]
                for t in trials
            ],
            "checkpoints": checkpoints,
            "folders": len(folders),
        }


def forked(work: Callable[[], Any]) -> tuple[int, Any]:
    """Call a function in a separate process, and return the exit code and the result."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)
        code = 1
        try:
            with os.fdopen(write_fd, "w") as file:
                json.dump(work(), file)
            code = 0
        except BaseException:  # noqa: BLE001  (told, and the process ends)
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    os.close(write_fd)
    with os.fdopen(read_fd) as file:
        text = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, json.loads(text) if code == 0 else None


class Killing:
    """Runs a search in processes that are killed.

    Args:
        folder: Directory for all files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._home = folder / "home"
        self._empty = folder / "empty"
        self._empty.mkdir()
        # Created once, so that late imports also happen once.
        Database.open(f"sqlite:///{self._empty / 'detcore.db'}").close()
        importlib.import_module("numpy.random")

    def straight(self, *, every: int) -> tuple[list[Path], int, dict[str, Any]]:
        """Run the search to its end.

        Returns:
            Copies of all files, as a SIGKILL before a step would have left them; the number of
            steps; and the outcome.
        """

        def copy(number: int) -> None:
            if number % every == 0:
                shutil.copytree(self._home, self._folder / f"step-{number:04}")

        shutil.copytree(self._empty, self._home)
        num_steps, result = self._go_on(copy)
        return sorted(self._folder.glob("step-*")), num_steps, result

    def from_copy(self, files: Path) -> dict[str, Any]:
        """Resume from a copy, and return the outcome."""
        self._put(files)
        return self._go_on()[1]

    def killed(self, kills: Sequence[int]) -> dict[str, Any]:
        """Kill one process after another before the given steps, and return the outcome."""
        self._put(self._empty)
        for last in kills:
            code, _ = forked(functools.partial(self._run, functools.partial(_kill_at, last)))
            if code == 0:
                break
            assert code == -signal.SIGKILL, f"the runner ended with {code}"
        return self._go_on()[1]

    def _put(self, files: Path) -> None:
        shutil.rmtree(self._home, ignore_errors=True)
        shutil.copytree(files, self._home)

    def _go_on(
        self, before: Callable[[int], None] = lambda number: None
    ) -> tuple[int, dict[str, Any]]:
        code, outcome_of_child = forked(lambda: (self._run(before), outcome(self._home)))
        assert code == 0, f"the runner ended with {code}"
        state, result = outcome_of_child
        return state, result

    def _run(self, before: Callable[[int], None]) -> int:
        steps = Steps(before)
        run(self._home, steps)
        steps.are_counted = False
        return steps.done


def _kill_at(last: int, number: int) -> None:
    if number == last:
        os.kill(os.getpid(), signal.SIGKILL)


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}: {found[name]} instead of {expected[name]}"
        for name in expected
        if found[name] != expected[name]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--every", type=int, default=1, help="kill at every n-th step only")
    parser.add_argument("--storms", type=int, default=0, help="searches with 12 random kills each")
    options = parser.parse_args()
    outcomes = {}
    with tempfile.TemporaryDirectory(prefix="killed-") as name:
        killing = Killing(Path(name))
        copies, num_steps, expected = killing.straight(every=options.every)
        for files in copies:
            outcomes[files.name] = differences(killing.from_copy(files), expected)
        for seed in range(options.storms):
            dice = random.Random(seed)
            kills = [dice.randrange(num_steps // 4) for _ in range(12)]
            outcomes[f"storm {seed}: {kills}"] = differences(killing.killed(kills), expected)
    wrong = {name: different for name, different in outcomes.items() if different}
    report = {"steps": num_steps, "tried": list(outcomes), "wrong": wrong, "expected": expected}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
