"""Helpers of the launcher clauses: start programs as workers and observe them."""

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
from detcore_testing.processes import wait_until_exited
from detcore_testing.suite_clauses import Suite, expect_equal, find_registered

_POLL_INTERVAL_S = 0.1
_PRELUDE = """\
import json, os, select, signal, subprocess, sys, time

RANK = int(os.environ["DETCORE_RANK"])


def send(**fields):
    data = json.dumps({"type": "suite", **fields}).encode() + b"\\n"
    channel = int(os.environ["DETCORE_CHANNEL_FD"])
    while data:
        select.select([], [channel], [])
        data = data[os.write(channel, data):]


def receive():
    line = b""
    channel = int(os.environ["DETCORE_CHANNEL_FD"])
    while not line.endswith(b"\\n"):
        select.select([channel], [], [])
        piece = os.read(channel, 65536)
        if not piece:
            sys.exit(9)
        line += piece
    return json.loads(line)


def start_sleeper():
    quiet = subprocess.DEVNULL
    return subprocess.Popen(["sleep", "600"], stdin=quiet, stdout=quiet, stderr=quiet).pid


"""


class LauncherRun:
    """The workers of one trial, with their output and events.

    Attributes:
        info: The trial.
        group: The workers.
        lines: Printed lines as rank, stream and line.
        events: Events from rank 0, in order.
        delay_s: Duration of each `record_line` call, in seconds.
        overlaps: Number of `record_line` calls that overlapped another call.
    """

    def __init__(self, info: TrialInfo, timeout_s: float) -> None:
        self.info = info
        self.group: WorkerGroup
        self.lines: list[tuple[int, str, str]] = []
        self.events: list[Mapping[str, Any]] = []
        self.delay_s = 0.0
        self.overlaps = 0
        self._recording = threading.Lock()
        self._timeout_s = timeout_s
        self._is_closed = False

    def record_line(self, rank: int, stream: str, line: str) -> None:
        """Record a printed line."""
        is_alone = self._recording.acquire(blocking=False)
        try:
            self.overlaps += not is_alone
            self.lines.append((rank, stream, line))
            time.sleep(self.delay_s)
        finally:
            if is_alone:
                self._recording.release()

    def lines_of_rank(self, rank: int = 0, stream: str = "stdout") -> list[str]:
        """Return the lines that a rank printed."""
        return [line for number, name, line in self.lines if (number, name) == (rank, stream)]

    def poll(self) -> None:
        """Wait briefly for an event, and record new events."""
        select.select([self.group.fileno()], [], [], _POLL_INTERVAL_S)
        self.record_events(self.group.poll())

    def record_events(self, events: list[WorkerEvent]) -> None:
        """Record the events from the suite's programs."""
        self.events += [event.fields for event in events if event.type == "suite"]

    def wait_until(
        self, condition: Callable[[], object], description: str, *, polls: bool = True
    ) -> None:
        """Wait until a condition is true.

        Args:
            condition: The condition.
            description: Description of the condition for the error message.
            polls: Whether to poll the group while waiting.
        """
        deadline = time.monotonic() + self._timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{self._timeout_s:g} s timeout: {description}. Output: {self.lines[-20:]}"
                )
            if polls:
                self.poll()
            else:
                time.sleep(0.01)

    def finish(self) -> int:
        """Wait until all workers have exited, and return the exit code."""
        self.wait_until(lambda: not self.group.is_alive, "the workers have exited")
        return self.close()

    def succeed(self) -> None:
        """Wait until all workers have exited with code 0."""
        expect_equal(self.finish(), 0, "the exit code")

    def close(self) -> int:
        """Close the group and return the exit code."""
        self._is_closed = True
        return self.group.close()

    def abandon(self) -> None:
        """Kill remaining workers, even if the launcher fails to."""
        if self._is_closed:
            return
        self.group.kill()
        for pid in wait_until_exited(self.group.pids, 5.0):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self.finish()


class LauncherAccess(Suite):
    """Declarations that a subclass of `detcore_testing.LauncherSuite` makes about its launcher.

    Attributes:
        launcher: The name under which a plugin registers it.
        timeout_s: Timeout of each operation in seconds.
        as_trial_class: Whether the programs run when a trial class is imported, instead of as
            commands. Use it to test launchers that treat the two differently.
    """

    capabilities: ClassVar[Mapping[str, str]] = {
        "keep-open": "rank 0 holds the descriptors of keep_open open while it runs",
        "local-processes": "workers are local processes, and pids contains their process ids",
        "several-workers": "the launcher starts several workers for a trial",
    }

    launcher: ClassVar[str] = ""
    timeout_s: ClassVar[float] = 60.0
    as_trial_class: ClassVar[bool] = False

    @property
    def few_slots(self) -> int:
        """Two workers, or one worker if several are declined."""
        return 1 if "several-workers" in self.declined else 2

    def make_launcher(self) -> Launcher:
        """Create the launcher. The default is the class registered under `launcher`."""
        registration = find_registered(PluginManager.launchers, "launcher", self.launcher)
        launcher: Launcher = import_object(registration.launcher)()
        return launcher

    def make_folder(self, tmp_path: Path) -> Path:
        """Return the parent directory of programs (``model``) and records (``home``).

        The default is `tmp_path`. Return one directory for all tests if the launcher caches code.
        """
        return tmp_path

    def make_info(self, tmp_path: Path, program: str) -> TrialInfo:
        """Write a program and create a trial that runs it.

        Args:
            tmp_path: Directory of the test.
            program: Python source, which may use `send`, `receive`, `start_sleeper` and `RANK`.
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
        document = config.model_dump(mode="json")
        url = f"sqlite:///{home / 'detcore.db'}"
        ids = _record_trial(url, document, model_dir) if self.as_trial_class else (1, number + 1, 1)
        info = TrialInfo(
            experiment_id=ids[0], trial_id=ids[1], run_id=ids[2], trial_seed=11,
            hparams={"global_batch_size": 8}, config=document, model_dir=str(model_dir),
            trial_dir=str(home / "trials" / str(ids[1])), settings=config.trial_settings(),
            searcher_length=5, validated_metric=0.25,
        )  # fmt: skip
        create_log(info)
        return info

    @contextlib.contextmanager
    def start_workers(
        self, tmp_path: Path, program: str, *, slots: int = 1, **options: Any
    ) -> Iterator[LauncherRun]:
        """Start a program as the workers of a trial. Kill remaining workers after the block.

        Args:
            tmp_path: Directory of the test.
            program: Python source.
            slots: Number of workers.
            **options: Additional arguments of `Launcher.start`.
        """
        launcher = self.make_launcher()
        try:
            with self.start_with(launcher, tmp_path, program, slots=slots, **options) as run:
                yield run
        finally:
            launcher.close()

    @contextlib.contextmanager
    def start_with(
        self, launcher: Launcher, tmp_path: Path, program: str, *, slots: int = 1, **options: Any
    ) -> Iterator[LauncherRun]:
        """Start a program with a launcher. Kill remaining workers after the block."""
        info = self.make_info(tmp_path, program)
        run = LauncherRun(info, self.timeout_s)
        home = self.make_folder(tmp_path) / "home"
        run.group = launcher.start(
            info, home=home, slots=slots, on_output=run.record_line, **options
        )
        try:
            yield run
        finally:
            run.abandon()


def _record_trial(url: str, config: dict[str, Any], model_dir: Path) -> tuple[int, int, int]:
    """Record a trial and return the ids of the experiment, trial and run."""
    with Database.open(url) as database:
        experiment = database.create_experiment(
            config=config, config_text=None, model_dir=str(model_dir), name="suite"
        )
        trial = database.create_trial(experiment_id=experiment, hparams={}, seed=11)
        return experiment, trial, database.start_run(trial)
