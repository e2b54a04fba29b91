"""Train steps of a run again in a scratch directory."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.checkpoint import copy_checkpoint
from detcore.data import DigestedRun, read_digests
from detcore.environment import child_environment
from detcore.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
    RunError,
    in_one_line,
)
from detcore.launch import framework_variables
from detcore.plugins.delivery import write_run
from detcore.storage import open_recorded
from detcore_replay.training.step_probe import load_tensors

if TYPE_CHECKING:
    from detcore.cli import CliContext
    from detcore.records import CheckpointRecord, Database
    from detcore.types import TrialInfo
    from detcore_replay.recorded_runs import Run


_TAIL_LINES = 12
_MAX_WORKERS_PER_CORE = 4
_RESET_VARIABLES = ("DETCORE_CHANNEL_FD", "DETCORE_DB", "DETCORE_MASTER")
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)


class Replay:
    """A running replay.

    Args:
        run: The replayed run.
        start: Steps completed at its start.
        folder: Directory of its results.
        process: The training process.
    """

    def __init__(
        self, run: Run, start: int, folder: Path, process: subprocess.Popen[bytes]
    ) -> None:
        self.start = start
        self._run = run
        self._folder = folder
        self._process = process

    def result(self) -> DigestedRun:
        """Wait for the replay, and return the digests of every step.

        Raises:
            RunError: If the replay failed. The message ends with its last lines of output.
        """
        code = self._process.wait()
        digests = read_digests(self._folder)
        if code or digests is None:
            lines = (self._folder / "output.txt").read_text(errors="replace").splitlines()
            raise RunError(
                f"the replay of {self._run.label} from step {self.start} ended with code {code}.\n"
                "Code, data or packages may have changed since the run. Last lines of its output:\n"
                + "\n".join(lines[-_TAIL_LINES:])
            )
        return digests

    def tensors(self, step: int) -> Mapping[str, Any] | None:
        """Return the tensors that were saved after a step, or None."""
        return load_tensors(self._folder, step)

    def end(self) -> None:
        """Kill the process, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Replayer:
    """Starts replays, each in a subdirectory of a scratch directory, and kills remaining replays.

    Args:
        obj: The settings of the command.
        database: The records, which are only read.
        scratch: An empty directory.

    Attributes:
        notes: Notes about the replays for the user.
    """

    def __init__(self, obj: CliContext, database: Database, scratch: Path) -> None:
        self._obj = obj
        self._database = database
        self._scratch = scratch
        self._counter = itertools.count(1)
        self._started: list[Replay] = []
        self.notes: list[str] = []

    @property
    def num_replays(self) -> int:
        """Number of started replays."""
        return len(self._started)

    def start(self, run: Run, *, after: int, stop: int, saved: Collection[int] = ()) -> Replay:
        """Start a replay of a run.

        Args:
            run: The run.
            after: Start from the newest checkpoint at this step or earlier.
            stop: The last step. Training ends at the scheduling unit that contains it.
            saved: Steps after which the tensors are saved.

        Raises:
            RunError: If the run cannot be replayed here. The message has the reason.
        """
        check_replayable(run)
        folder = self._scratch / str(next(self._counter))
        for name in ("trial", "checkpoints", "home"):
            (folder / name).mkdir(parents=True)
        checkpoint = self._fetch_checkpoint(run, after, folder / "checkpoints")
        code = _lay_out_code(run, folder, checkpoint)
        start = checkpoint.steps_completed if checkpoint else 0
        environment = self._make_environment(run, folder, code, checkpoint)
        words = [str(folder), str(start), str(stop), ",".join(map(str, sorted(saved)))]
        words += build_worker_arguments(run.info)
        replay = Replay(run, start, folder, self._spawn_process(words, code, environment))
        self._started.append(replay)
        return replay

    def close(self) -> None:
        """Kill the replays that still run."""
        for replay in self._started:
            replay.end()

    def _spawn_process(
        self, words: list[str], code: Path, environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start the training process in the code directory.

        Args:
            words: Arguments of the process. The first is the directory of its output.
            code: Working directory of the process.
            environment: Environment variables of the process.
        """
        with (Path(words[0]) / "output.txt").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "detcore_replay.training.replay_process", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=code,
                env=environment,
            )

    def _make_environment(
        self, run: Run, folder: Path, code: Path, checkpoint: CheckpointRecord | None
    ) -> dict[str, str]:
        """Return the environment variables of the training process."""
        info = run.info
        storage = {"type": "directory", "container_path": str(folder / "checkpoints")}
        scratch = dataclasses.replace(
            info,
            run_id=1,
            trial_dir=str(folder / "trial"),
            model_dir=str(code),
            code_dir=None,
            settings=dataclasses.replace(
                info.settings, step_digests=1, data_ledger=False, checkpoint_storage=storage
            ),
            latest_checkpoint=checkpoint.uuid if checkpoint else None,
            steps_completed=checkpoint.steps_completed if checkpoint else 0,
            validated_metric=None,
            source_checkpoint=None if checkpoint else self._fetch_source(run, folder),
            source_storage=None,
        )
        facts = run.digests.facts if run.digests else {}
        recorded = {name: str(value) for name, value in facts.get("variables", {}).items()}
        return child_environment(
            {
                **recorded,
                "DETCORE_HOME": str(folder / "home"),
                "DETCORE_TRIAL_INFO": str(write_run(scratch)),
            },
            defaults=framework_variables(self._obj.plugin_manager()),
            without=[
                *_RESET_VARIABLES,
                *(name for name in _THREAD_VARIABLES if facts and name not in recorded),
            ],
        )

    def _fetch_checkpoint(self, run: Run, after: int, folder: Path) -> CheckpointRecord | None:
        """Copy the nearest available checkpoint; return None to start from the beginning."""
        while (record := run.find_checkpoint_before(after)) is not None:
            try:
                self._download_checkpoint(record, folder / record.uuid)
            except (CheckpointCorruptError, CheckpointNotFoundError) as error:
                self.notes.append(
                    f"checkpoint {record.uuid} of {run.label} (step {record.steps_completed}) "
                    f"cannot be read, so an earlier checkpoint is used: {in_one_line(error)}"
                )
                after = record.steps_completed - 1
                continue
            return record
        return None

    def _download_checkpoint(self, record: CheckpointRecord, folder: Path) -> None:
        storage = open_recorded(
            record,
            database=self._database,
            home=self._obj.environment.home,
            plugins=self._obj.plugin_manager(),
        )
        with contextlib.closing(storage):
            copy_checkpoint(storage, record.uuid, folder)

    def _fetch_source(self, run: Run, folder: Path) -> str | None:
        """Copy the other trial's checkpoint that the run started from; return its path."""
        source = run.info.source_checkpoint
        if source is None or "/" in source:
            return source
        self._download_checkpoint(self._database.get_checkpoint(source), folder / "source")
        return str(folder / "source")


def check_replayable(run: Run) -> None:
    """Raise RunError with the reason if a run cannot be replayed."""
    if not run.info.settings.is_trial_class:
        raise RunError(
            f"{run.label} was trained by a command ({run.info.settings.entrypoint}), which cannot "
            "train single steps.\n"
            "Stored digests can be compared. For a replay, train a trial class."
        )
    if run.digests is not None and not run.digests.facts.get("has_state"):
        raise RunError(
            f"trials of the framework {run.framework} cannot be replayed: its controller has no "
            "state_tensors(), so the states of two runs cannot be compared.\n"
            "Digests of step metrics are stored, and detcore diverge compares them.\n"
            "See SupportsStateTensors in docs/data.md to add the method to a framework."
        )


def build_worker_arguments(info: TrialInfo) -> list[str]:
    """Return the arguments of the process for a trial with several workers; empty for one worker.

    Raises:
        RunError: If this machine is too small for the number of workers.
    """
    slots = info.settings.slots_per_trial
    num_cores = os.cpu_count() or 1
    if slots > _MAX_WORKERS_PER_CORE * num_cores:
        raise RunError(
            f"the trial had {slots} workers, and this machine has {num_cores} processor cores.\n"
            "A replay needs as many workers as before, all on this machine: fewer workers would "
            "read other batches and add in another order.\n"
            "Run the command on a larger machine. Stored digests can be compared on any machine."
        )
    return [] if slots == 1 else [str(slots)]


def _lay_out_code(run: Run, folder: Path, checkpoint: CheckpointRecord | None) -> Path:
    """Copy the run's code into the scratch directory, and link the other files beside it.

    Raises:
        RunError: If the code no longer exists.
    """
    target = folder / "code"
    source = find_code(run, folder / "checkpoints" / checkpoint.uuid if checkpoint else None)
    if source is None:
        raise RunError(
            f"the code of {run.label} no longer exists, neither in a checkpoint nor in "
            f"{run.info.code_dir}.\n"
            "Steps cannot be trained again without it. Only stored digests were compared."
        )
    shutil.copytree(source, target)
    model_dir = Path(run.info.model_dir)
    for path in model_dir.iterdir() if model_dir.is_dir() else ():
        if path.name != "__pycache__" and not (target / path.name).exists():
            (target / path.name).symlink_to(path)
    return target


def find_code(run: Run, checkpoint: Path | None = None) -> Path | None:
    """Return the directory with the code of a run, or None if it no longer exists."""
    candidates = [
        *([checkpoint / "code"] if checkpoint else []),
        *([Path(run.info.code_dir)] if run.info.code_dir else []),
    ]
    return next((path for path in candidates if path.is_dir()), None)
