"""Start the workers of a trial from its latest checkpoint, in a free place."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.checkpoint import find_intact_checkpoint
from detcore.contract.errors import CheckpointCorruptError, RunError, StorageError
from detcore.contract.values import TrialInfo
from detcore.environment import read_variables
from detcore.launch import framework_variables
from detcore.log.reading import event_log_path
from detcore.log.writing import open_log
from detcore.plugins.delivery import read_run, write_run
from detcore.records import answer_question, ingest_event_logs
from detcore.run.checkpoint_source import find_source, recover_trial
from detcore.run.running_trial import RunningTrial, TrialOutput
from detcore.trial import copy_code, list_code

if TYPE_CHECKING:
    from detcore.config import ExperimentConfig
    from detcore.environment import Environment
    from detcore.launch import Launcher
    from detcore.records import CheckpointRecord, Database, LogFollower, RunnerLock, TrialRecord
    from detcore.run.run_listener import RunSettings
    from detcore.storage import StorageBackend


_DEVICES = "CUDA_VISIBLE_DEVICES"
_MAX_CONCURRENT = 10_000


class Slots:
    """The slots of this machine, divided into places for trials.

    Args:
        total: All slots; >= `per_trial`.
        per_trial: Slots that each trial takes; >= 1.
        devices: Names of the accelerators, as their variable has them. If they are enough for all
            slots, each trial sees only its own.

    Attributes:
        at_once: How many trials run at once.
        places: For each of them the variables by which its workers see their devices only.
    """

    def __init__(self, total: int, per_trial: int, devices: Sequence[str] = ()) -> None:
        # A number that means "no limit" gives as many as any machine has.
        self.at_once = min(max(1, total // per_trial), _MAX_CONCURRENT)
        self.places: list[Mapping[str, str]] = [{}] * self.at_once
        if self.at_once > 1 and len(devices) >= self.at_once * per_trial:
            starts = range(0, self.at_once * per_trial, per_trial)
            self.places = [{_DEVICES: ",".join(devices[at : at + per_trial])} for at in starts]


def count_slots(config: ExperimentConfig, *, max_slots: int | None) -> tuple[int, Slots]:
    """Return the number of workers of a trial, and the slots for all trials.

    Args:
        config: The experiment's configuration.
        max_slots: Slots in all; default: ``resources.max_slots``, else the accelerators, else
            those of one trial.

    Raises:
        RunError: If one trial needs more.
    """
    resources = config.resources
    # 0 slots are one worker, on the CPU.
    per_trial = max(1, resources.slots_per_trial)
    devices = _accelerators() if resources.slots_per_trial else []
    total = max_slots if max_slots is not None else resources.max_slots
    if total is None:
        total = max(per_trial, len(devices))
    elif 0 < total < per_trial:
        raise RunError(
            f"each trial has {per_trial} workers (resources.slots_per_trial), but there are "
            f"{total} slots (max_slots): no trial could start.\n"
            f"Give at least {per_trial}: --max-slots {per_trial}"
        )
    return per_trial, Slots(max(total, per_trial), per_trial, devices)


def _accelerators() -> list[str]:
    """Return the names of the NVIDIA devices that this process may use."""
    visible = read_variables((_DEVICES,)).get(_DEVICES)
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        return [name for name in names if name and name != "-1"]
    found = (re.fullmatch(r"nvidia(\d+)", path.name) for path in Path("/dev").glob("nvidia*"))
    return sorted((match[1] for match in found if match), key=int)


def get_experiment_dir(environment: Environment, experiment_id: int) -> Path:
    """Return the folder of an experiment's own files."""
    return environment.home / "experiments" / str(experiment_id)


def get_trials_dir(environment: Environment, experiment_id: int) -> Path:
    """Return the folder with the folders of an experiment's trials."""
    return get_experiment_dir(environment, experiment_id) / "trials"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarter:
    """Starts trials of an experiment, follows their logs, and answers their workers' questions.

    While its trials run, the runner is the only process that moves their reports into the records,
    apart from commands that read.

    Attributes:
        database: The records; a call waits while they are away.
        no_wait_database: The same, for calls that must not wait.
        run: The settings of the run.
        experiment_id: Which experiment.
        config: Its configuration, with secrets.
        code_dir: Folder with a copy of the user's code without secrets; None: the trial is a
            script.
        model_dir: Folder of the user's code.
        test_mode: Whether trials are smoke runs.
        num_workers: Workers of each trial; >= 1.
        storage: Where the checkpoints are.
        launcher: Starts the workers.
        lock: The experiment's lock, whose file the chief workers inherit.
        follower: Moves the reports of the workers into the records.
    """

    database: Database
    no_wait_database: Database
    run: RunSettings
    experiment_id: int
    config: ExperimentConfig
    code_dir: Path | None
    model_dir: str
    test_mode: bool
    num_workers: int
    storage: StorageBackend
    launcher: Launcher
    lock: RunnerLock
    follower: LogFollower

    def start(
        self,
        index: int,
        trial_id: int,
        *,
        length: int | None,
        place: Mapping[str, str],
        is_closed: bool = False,
        was_complete: bool = False,
    ) -> RunningTrial:
        """Start the workers of a trial from its latest checkpoint; a new run of it begins.

        Args:
            index: Its number in the search.
            trial_id: Its record.
            length: How far the search wants it trained first.
            place: Variables of the place where it runs.
            is_closed: Whether the search trains it no further.
            was_complete: Whether it is recorded as complete: a script restores it.

        Raises:
            RunError: If the workers cannot be started.
        """
        info = self._info(trial_id, length, is_closed=is_closed, was_complete=was_complete)
        self._open_log(info)
        frameworks = () if self.run.is_verbose else self.run.plugins.frameworks().values()
        notices = [notice for framework in frameworks for notice in framework.notices]
        output = TrialOutput(info, self.run.listener, notices)
        try:
            workers = self.launcher.start(
                info,
                home=self.run.environment.home,
                slots=self.num_workers,
                keep_open=(self.lock.fd,),
                on_output=output,
                disabled_plugins=self.run.plugins.disabled,
                allowed_plugins=self.run.plugins.allowed,
                variables={
                    **({} if self.run.is_verbose else framework_variables(self.run.plugins)),
                    **place,
                },
            )
        except BaseException:
            self._unfollow(info)
            output.close()
            raise
        self.run.listener.trial_started(info, pid=workers.pid)
        if self.num_workers > 1:
            self.run.listener.notice(
                f"{self.num_workers} workers: processes {', '.join(map(str, workers.pids))}"
            )
        return RunningTrial(index, info, workers, output)

    def _info(
        self, trial_id: int, length: int | None, *, is_closed: bool, was_complete: bool
    ) -> TrialInfo:
        trial = self.database.get_trial(trial_id)
        settings = self.config.trial_settings()
        folder = get_trials_dir(self.run.environment, self.experiment_id) / str(trial_id)
        latest = best = None
        if trial.run_id:  # else it has neither checkpoints nor values
            # Checkpoints that a killed worker left half written are settled first.
            recover_trial(self.database, self.storage, trial)
            latest = self._find_checkpoint(trial_id)
            # One that was killed while it restored a complete run has a state of its own.
            was_complete = was_complete or (is_closed and _was_restoring(folder, trial))
            # Values after the checkpoint are of a run that is trained again.
            best = self.database.get_best_value_until(
                trial_id, settings, latest.steps_completed if latest else 0
            )
        source = None
        if latest is None:
            source = find_source(
                settings,
                database=self.database,
                storage=self.storage,
                environment=self.run.environment,
                plugins=self.run.plugins,
            )
        return TrialInfo(
            experiment_id=self.experiment_id,
            trial_id=trial_id,
            run_id=self.database.start_run(
                trial_id,
                observers=[each.entry.name for each in self.run.plugins.observers()],
            ),
            trial_seed=trial.seed,
            hparams=trial.hparams,
            config=self.config.model_dump(mode="json"),
            model_dir=self.model_dir,
            trial_dir=str(folder),
            latest_checkpoint=latest.uuid if latest else None,
            steps_completed=latest.steps_completed if latest else 0,
            test_mode=self.test_mode,
            source_checkpoint=source.checkpoint if source else None,
            source_storage=source.storage if source else None,
            searcher_length=None if has_no_length(self.config) else length,
            validated_metric=self._validated_metric(latest) if latest else None,
            best_validation=best,
            settings=settings,
            code_dir=None if self.code_dir is None else str(self.code_dir),
            is_complete=was_complete and self._has_end(trial, latest),
        )

    def _find_checkpoint(self, trial_id: int) -> CheckpointRecord | None:
        """Return the newest whole checkpoint of a trial.

        Of a script the files are read: its user must start it again where the restore fails.

        Raises:
            CheckpointCorruptError: If none is whole, of a script. Another trial starts from its
                newest one, and fails: the search goes on without it.
        """
        is_script = self.code_dir is None
        try:
            return find_intact_checkpoint(
                self.database, self.storage, trial_id, reads_files=is_script
            )
        except CheckpointCorruptError:
            if is_script:
                raise
            return self.database.latest_checkpoint(trial_id)

    def _has_end(self, trial: TrialRecord, latest: CheckpointRecord | None) -> bool:
        """Whether a checkpoint has the last step that a trial reported."""
        summaries = self.database.summarize_trials(
            self.experiment_id, metric=None, trial_ids=[trial.id]
        )
        end = summaries[trial.id].steps_completed
        return latest is not None and latest.steps_completed >= end

    def _open_log(self, info: TrialInfo) -> None:
        """Create the log of a run, and start to follow it.

        Raises:
            StorageFullError: If there is no room for it.
            StorageError: If there is no room for the description of the run.
        """
        write_run(info)
        with open_log(info):
            pass  # its first line
        self.follower.follow(event_log_path(Path(info.trial_dir), info.run_id))

    def _unfollow(self, info: TrialInfo) -> None:
        self.follower.unfollow(event_log_path(Path(info.trial_dir), info.run_id))

    def release(self, info: TrialInfo) -> None:
        """Stop following a run whose workers are gone, and take in the rest of its log."""
        self._unfollow(info)
        home = self.run.environment.home
        ingest_event_logs(
            self.database, home, experiment_id=self.experiment_id, trial_id=info.trial_id
        )

    def answer(self, info: TrialInfo, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to a worker's question about the records.

        Args:
            info: The trial of the worker.
            question: Its message: ``question``, ``number`` and ``fields``.
        """
        found = answer_question(
            self.no_wait_database,
            self.run.environment.home,
            info.trial_id,
            str(question["question"]),
            question["fields"],
        )
        return {"type": "answer", "number": question["number"], "answer": found}

    def _validated_metric(self, checkpoint: CheckpointRecord) -> float | None:
        """Return the searcher's metric of a validation that followed a checkpoint, or None."""
        found = self.database.validation_at(checkpoint.trial_id, checkpoint.steps_completed)
        # An earlier one may be of other weights: of a run that trained that far and saved nothing.
        if found is None or not found.reported_at or found.reported_at < checkpoint.started_at:
            return None
        value = found.metrics.get(self.config.searcher.metric)
        if not isinstance(value, int | float) or math.isnan(value):
            return None
        return float(value)


def _was_restoring(folder: Path, trial: TrialRecord) -> bool:
    """Whether the last start of a trial restored a complete run."""
    try:
        return read_run(folder, trial.run_id).is_complete
    except (RunError, StorageError):
        return False


def has_no_length(config: ExperimentConfig) -> bool:
    """Whether nothing says how far a trial trains, as in a script that passes no length."""
    return config.searcher.name == "single" and config.searcher.max_length is None


def copy_model_code(model_dir: Path, folder: Path, config: ExperimentConfig) -> Path:
    """Copy the user's code, without secrets, to where checkpoints take it from; return the folder.

    Args:
        model_dir: Folder of the user's code.
        folder: The experiment's; a copy of an earlier run is replaced.
        config: The configuration, with its secrets.
    """
    copy = folder / "saved-code"
    shutil.rmtree(copy, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    copy_code(model_dir, list_code(model_dir), copy, config=config.model_dump(mode="json"))
    return copy
