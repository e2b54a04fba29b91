"""Access for the launcher clauses: start programs as workers, and observe them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from detcore.config import ExperimentConfig
from detcore.launch import Launcher, WorkerEvent, WorkerGroup
from detcore.launch.nodes import create_log
from detcore.plugins import PluginManager
from detcore.records import Database
from detcore.trial import import_object
from detcore.types import TrialInfo
from detcore_testing.processes import wait_until_gone
from detcore_testing.suite_clauses import Suite, expect_equal, find_registered

_POLL_INTERVAL_S = 0.1
_PRELUDE = """\
import json, os, select, signal, subprocess, sys, time

RANK = int(os.environ["DETCORE_RANK"])


def tell(**fields):
    data = json.dumps({"type": "suite", **fields}).encode() + b"\\n"
    channel = int(os.environ["DETCORE_CHANNEL_FD"])
    while data:
        select.select([], [channel], [])
        data = data[os.write(channel, data):]


def ask():
    line = b""
    channel = int(os.environ["DETCORE_CHANNEL_FD"])
    while not line.endswith(b"\\n"):
        select.select([channel], [], [])
        piece = os.read(channel, 65536)
        if not piece:
            sys.exit(9)
        line += piece
    return json.loads(line)


def sleeper():
    quiet = subprocess.DEVNULL
    return subprocess.Popen(["sleep", "600"], stdin=quiet, stdout=quiet, stderr=quiet).pid


"""


class LauncherRun:
    """The workers of one trial, with their output and events so far.

    Attributes:
        info: The trial.
        group: The workers.
        lines: The lines that they printed: rank, stream and line.
        events: The events that rank 0 reported, in order.
        delay_s: How long `take` takes for a line, in seconds.
        overlaps: Number of lines that arrived while another one was being taken.
    """

    def __init__(self, info: TrialInfo, timeout_s: float) -> None:
        self.info = info
        self.group: WorkerGroup
        self.lines: list[tuple[int, str, str]] = []
        self.events: list[Mapping[str, Any]] = []
        self.delay_s = 0.0
        self.overlaps = 0
        self._taking = threading.Lock()
        self._timeout_s = timeout_s
        self._is_closed = False

    def take(self, rank: int, stream: str, line: str) -> None:
        """Take a line."""
        is_alone = self._taking.acquire(blocking=False)
        try:
            self.overlaps += not is_alone
            self.lines.append((rank, stream, line))
            time.sleep(self.delay_s)
        finally:
            if is_alone:
                self._taking.release()

    def printed(self, rank: int = 0, stream: str = "stdout") -> list[str]:
        """Return the lines of a rank."""
        return [line for number, name, line in self.lines if (number, name) == (rank, stream)]

    def poll(self) -> None:
        """Wait a moment for something to happen, and take note of it."""
        select.select([self.group.fileno()], [], [], _POLL_INTERVAL_S)
        self.note(self.group.poll())

    def note(self, events: list[WorkerEvent]) -> None:
        """Keep the events that the suite's programs reported."""
        self.events += [event.fields for event in events if event.type == "suite"]

    def until(self, happened: Callable[[], object], what: str, *, polls: bool = True) -> None:
        """Wait until something has happened.

        Args:
            happened: Returns whether it has.
            what: Description of the event, for the error.
            polls: Whether the group is polled meanwhile.
        """
        deadline = time.monotonic() + self._timeout_s
        while not happened():
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{what}: not within {self._timeout_s:g} s; printed: {self.lines[-20:]}"
                )
            if polls:
                self.poll()
            else:
                time.sleep(0.01)

    def finish(self) -> int:
        """Wait until all have ended; return the exit code."""
        self.until(lambda: not self.group.is_alive, "the workers have ended")
        return self.close()

    def succeed(self) -> None:
        """Wait until all have ended, with exit code 0."""
        expect_equal(self.finish(), 0, "the exit code")

    def close(self) -> int:
        """Close the group, whatever the workers do; return the exit code."""
        self._is_closed = True
        return self.group.close()

    def abandon(self) -> None:
        """End the workers that a test has left, even if the launcher does not."""
        if self._is_closed:
            return
        self.group.kill()
        for pid in wait_until_gone(self.group.pids, 5.0):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self.finish()


class LauncherAccess(Suite):
    """Declarations that a subclass of `detcore_testing.LauncherSuite` makes about its launcher.

    Attributes:
        launcher: The name under which a plugin registers it.
        timeout_s: How long anything may take, in seconds.
        as_trial_class: Whether the programs run as the import of a trial class, rather than as
            commands; for launchers that treat the two differently.
    """

    capabilities: ClassVar[Mapping[str, str]] = {
        "keep-open": "rank 0 holds the descriptors of keep_open open as long as it runs",
        "local-processes": "workers are processes of this machine, and pids are their numbers",
        "several-workers": "it starts more than one worker for a trial",
    }

    launcher: ClassVar[str] = ""
    timeout_s: ClassVar[float] = 60.0
    as_trial_class: ClassVar[bool] = False

    @property
    def few_slots(self) -> int:
        """Two workers, or one where several are declined."""
        return 1 if "several-workers" in self.declined else 2

    def make_launcher(self) -> Launcher:
        """Make the launcher; default: the class that is registered under `launcher`."""
        found = find_registered(PluginManager.launchers, "launcher", self.launcher)
        made: Launcher = import_object(found.launcher)()
        return made

    def make_folder(self, tmp_path: Path) -> Path:
        """Return the folder for programs (``model``) and records (``home``); default: `tmp_path`.

        Return the same folder for all tests if the launcher starts known code faster.
        """
        return tmp_path

    def make_info(self, tmp_path: Path, program: str) -> TrialInfo:
        """Write a program, and record a trial that runs it.

        Args:
            tmp_path: Where.
            program: Python source; `tell`, `ask`, `sleeper` and `RANK` are there.
        """
        model_dir, home = self.make_folder(tmp_path) / "model", self.make_folder(tmp_path) / "home"
        model_dir.mkdir(exist_ok=True)
        home.mkdir(exist_ok=True)
        number = sum(1 for _ in model_dir.glob("program_*.py"))
        end = "sys.exit(0)\n" if self.as_trial_class else ""
        (model_dir / f"program_{number}.py").write_text(f"{_PRELUDE}{program}\n{end}")
        entrypoint = f"python3 program_{number}.py"
        if self.as_trial_class:
            entrypoint = f"program_{number}:Trial"
        config = ExperimentConfig.model_validate(
            {
                "name": "suite",
                "entrypoint": entrypoint,
                "hyperparameters": {"global_batch_size": 8},
                "searcher": {"name": "single", "metric": "m", "max_length": {"batches": 1}},
            }
        )
        plain = config.model_dump(mode="json")
        url = f"sqlite:///{home / 'detcore.db'}"
        ids = _record(url, plain, model_dir) if self.as_trial_class else (1, number + 1, 1)
        info = TrialInfo(
            experiment_id=ids[0], trial_id=ids[1], run_id=ids[2], trial_seed=11,
            hparams={"global_batch_size": 8}, config=plain, model_dir=str(model_dir),
            trial_dir=str(home / "trials" / str(ids[1])), settings=config.trial_settings(),
            searcher_length=5, validated_metric=0.25,
        )  # fmt: skip
        create_log(info)
        return info

    @contextlib.contextmanager
    def started(
        self, tmp_path: Path, program: str, *, slots: int = 1, **options: Any
    ) -> Iterator[LauncherRun]:
        """Start a program as the workers of a trial, for a block; then end remaining workers.

        Args:
            tmp_path: Where.
            program: Python source.
            slots: How many workers.
            **options: More arguments of `Launcher.start`.
        """
        launcher = self.make_launcher()
        try:
            with self.running(launcher, tmp_path, program, slots=slots, **options) as run:
                yield run
        finally:
            launcher.close()

    @contextlib.contextmanager
    def running(
        self, launcher: Launcher, tmp_path: Path, program: str, *, slots: int = 1, **options: Any
    ) -> Iterator[LauncherRun]:
        """Start a program with a launcher, for a block; then end remaining workers."""
        info = self.make_info(tmp_path, program)
        run = LauncherRun(info, self.timeout_s)
        home = self.make_folder(tmp_path) / "home"
        run.group = launcher.start(info, home=home, slots=slots, on_output=run.take, **options)
        try:
            yield run
        finally:
            run.abandon()


def _record(url: str, config: dict[str, Any], model_dir: Path) -> tuple[int, int, int]:
    """Record a trial, whose class opens its records; return its numbers."""
    with Database.open(url) as database:
        experiment = database.create_experiment(
            config=config, config_text=None, model_dir=str(model_dir), name="suite"
        )
        trial = database.create_trial(experiment_id=experiment, hparams={}, seed=11)
        return experiment, trial, database.start_run(trial)
