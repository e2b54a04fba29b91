"""Trials that tests start, answer and close without a runner."""

from __future__ import annotations

import json
import os
import re
import select
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until

from detcore.config import ExperimentConfig
from detcore.launch import LocalLauncher, WorkerEvent, WorkerGroup
from detcore.records import Database
from detcore.types import TrialInfo

MODEL = """
import atexit, gc, json, os, random, signal, sys, threading, time
import numpy as np
from detcore_toy import ToyTrial

at_import = [random.random(), float(np.random.random())]


def facts():
    main = sys.modules["__main__"]
    with open(os.devnull) as probe:
        umask = os.umask(0)
        os.umask(umask)
    pipes = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{fd}")]
    return {
        "argv": sys.argv,
        "main": [main.__file__, main.__spec__.name],
        "path": sys.path,
        "cwd": os.getcwd(),
        "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
        "umask": umask,
        "signals": [str(signal.getsignal(n)) for n in signal.valid_signals()
                    if n not in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)],
        "variables": {name: value for name, value in os.environ.items()
                      if not name.endswith(("_FD", "_KEY", "_INFO"))},
        "stdin": os.readlink("/proc/self/fd/0"),
        "streams": [sys.stdout.line_buffering, sys.stdout.write_through, sys.stdout.encoding],
        "at_import": at_import,
        "files": sorted(pipes),
        "flags": str(sys.flags),
        "own": os.getpid(),
        "parent": os.getppid(),
        "modules": sorted(sys.modules),
        "collector": [gc.isenabled(), gc.get_freeze_count() > 10_000],
    }


def sleep(seconds):
    time.sleep(seconds)
    print("slept")


class Kept:
    # Only the collector of cycles lets it go, at the end of the process.
    def __init__(self, path):
        self.me = self
        self.file = open(path, "w")
        self.file.write("written")


class Trial(ToyTrial):
    def __init__(self, context):
        self.hparams = context.get_hparams()

    def build_data(self):
        with open(self.hparams["facts"], "w") as file:
            json.dump(facts(), file)
        global kept
        kept = Kept(self.hparams["facts"] + ".kept")
        json.left_open = open(self.hparams["facts"] + ".left", "w")
        json.left_open.write("written")
        if self.hparams.get("does") == "ends late":
            atexit.register(print, "at exit")
            for wait_s, is_daemon in ((0.2, False), (600, True)):
                thread = threading.Thread(target=sleep, args=(wait_s,), daemon=is_daemon)
                thread.start()
        print("to stdout")
        print("to stderr", file=sys.stderr)
        x = np.random.default_rng(3).normal(size=(96, 3))
        return x, x @ np.array([1.0, -2.0, 0.5])

    def on_batch(self, step):
        does = self.hparams.get("does", "")
        if step == 1 and does.startswith("kill"):
            os.kill(os.getpid(), int(does.split()[1]))
        if step == 1 and does.startswith("exit"):
            os._exit(int(does.split()[1]))
        if step == 1 and does == "wait":
            print("waiting", flush=True)
            time.sleep(600)
"""
CONFIG: dict[str, Any] = {
    "name": "warm",
    "entrypoint": "model_def:Trial",
    "hyperparameters": {"global_batch_size": 8, "learning_rate": 0.05},
    "searcher": {"name": "single", "metric": "val_loss", "max_length": {"batches": 4}},
    "scheduling_unit": 2,
}
HPARAMS = {"global_batch_size": 8, "learning_rate": 0.05}


class Trials:
    """An experiment whose trials a test starts individually.

    Args:
        home: Directory for the records.
        model_dir: Directory of the trial's code.
        config: Configuration, to which defaults are added.
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
            settings=ExperimentConfig.model_validate(self._plain).trial_settings(),
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
    """Tell a trial to end, and return its exit code."""
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


class Runs:
    """Cold and warm trials of the class above."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        model_dir = folder / "model"
        model_dir.mkdir()
        (model_dir / "model_def.py").write_text(MODEL)
        self.trials = Trials(folder / "home", model_dir, CONFIG)
        self.notices: list[str] = []
        self.parent = 0
        self.warm = LocalLauncher(fork_frameworks=["toy"], notice=self.notices.append)

    def close(self) -> None:
        self.warm.close()
        self.trials.close()

    def start(self, launcher: LocalLauncher, does: str = "") -> Any:
        facts = self.folder / "facts.json"
        facts.unlink(missing_ok=True)
        self.trials.output.clear()
        hparams: dict[str, Any] = {**HPARAMS, "facts": str(facts), "does": does}
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("PYTEST_CURRENT_TEST", raising=False)  # differs in each test
            return self.trials.start(launcher, **hparams)

    def start_waiting(self) -> Any:
        """Start a warm trial, and return when it waits."""
        group = self.start(self.warm, "wait")
        wait_until(lambda: ("stdout", "waiting") in self.trials.output)
        return group

    def run(self, launcher: LocalLauncher, does: str = "") -> tuple[int, Any]:
        """Run a trial to its end, and return its exit code and its findings, if any."""
        code = finish(self.start(launcher, does))
        facts = self.folder / "facts.json"
        return code, json.loads(facts.read_text()) if facts.exists() else None

    def warm_up(self) -> Any:
        """Run trials until one is warm, and return its findings."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            code, facts = self.run(self.warm)
            assert code == 0, self.trials.output
            if facts["parent"] != os.getpid():
                self.parent = int(facts["parent"])
                return facts
        raise TimeoutError("no worker was forked")


def kind(file: str) -> str:
    """Describe the target of a descriptor without trial ids: "pipe", ".../trials//events"."""
    return re.sub(r":\[\d+\]|(?<=/trials/)\d+", "", file)
