"""Start the workers of a trial from its latest checkpoint, in a free place."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.checkpoint import find_intact_checkpoint
from detcore.contract.errors import CheckpointCorruptError, RunError, StorageError
from detcore.contract.values import TrialInfo, TrialState
from detcore.environment import read_variables
from detcore.launch import SupportsAttach, framework_variables
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
        total: Number of slots; >= `per_trial`.
        per_trial: Number of slots per trial; >= 1.
        devices: Names of the accelerators, as in ``CUDA_VISIBLE_DEVICES``. If they are sufficient
            for all slots, each trial sees only its own devices.

    Attributes:
        max_concurrent: Maximum number of concurrent trials.
        places: For each concurrent trial, the variables that restrict its workers to their devices.
    """

    def __init__(self, total: int, per_trial: int, devices: Sequence[str] = ()) -> None:
        # A huge number, which means "no limit", is limited to a realistic number of trials.
        self.max_concurrent = min(max(1, total // per_trial), _MAX_CONCURRENT)
        self.places: list[Mapping[str, str]] = [{}] * self.max_concurrent
        if self.max_concurrent > 1 and len(devices) >= self.max_concurrent * per_trial:
            starts = range(0, self.max_concurrent * per_trial, per_trial)
            self.places = [{_DEVICES: ",".join(devices[at : at + per_trial])} for at in starts]


def count_slots(config: ExperimentConfig, *, max_slots: int | None) -> tuple[int, Slots]:
    """Return the number of workers of a trial, and the slots for all trials.

    Args:
        config: The experiment's configuration.
        max_slots: Total number of slots. Default: ``resources.max_slots``, or the number of
            accelerators, or the slots of one trial.

    Raises:
        RunError: If a single trial requires more slots.
    """
    resources = config.resources
    # 0 slots mean one worker, on the CPU.
    per_trial = max(1, resources.slots_per_trial)
    devices = _list_accelerators() if resources.slots_per_trial else []
    total = max_slots if max_slots is not None else resources.max_slots
    if total is None:
        total = max(per_trial, len(devices))
    elif 0 < total < per_trial:
        raise RunError(
            f"each trial has {per_trial} workers (resources.slots_per_trial), but only {total} "
            f"slots are available (max_slots), so no trial can start.\n"
            f"Allow at least {per_trial} slots:  --max-slots {per_trial}"
        )
    return per_trial, Slots(max(total, per_trial), per_trial, devices)


def _list_accelerators() -> list[str]:
    """Return the names of the NVIDIA devices that this process may use."""
    visible = read_variables((_DEVICES,)).get(_DEVICES)
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        return [name for name in names if name and name != "-1"]
    matches = (re.fullmatch(r"nvidia(\d+)", path.name) for path in Path("/dev").glob("nvidia*"))
    return sorted((match[1] for match in matches if match), key=int)


def get_experiment_dir(environment: Environment, experiment_id: int) -> Path:
    """Return the directory of an experiment's files."""
    return environment.home / "experiments" / str(experiment_id)


def get_trials_dir(environment: Environment, experiment_id: int) -> Path:
    """Return the parent directory of the directories of an experiment's trials."""
    return get_experiment_dir(environment, experiment_id) / "trials"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarter:
    """Starts trials of an experiment, follows their logs, and answers their workers' queries.

    While its trials run, only the runner and commands that read ingest their reports into the
    records.

    Attributes:
        database: The records. Calls wait while they are unreachable.
        no_wait_database: The same records, for calls that must not wait.
        run: The settings of the run.
        experiment_id: The experiment.
        config: Its configuration, with secrets.
        code_dir: Directory with a copy of the user's code without secrets. None for a standalone
            script.
        model_dir: Directory of the user's code.
        test_mode: Whether trials are smoke runs.
        num_workers: Number of workers per trial; >= 1.
        storage: Storage of the checkpoints.
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

    def start_trial(
        self,
        index: int,
        trial_id: int,
        *,
        length: int | None,
        place: Mapping[str, str],
        is_closed: bool = False,
        was_complete: bool = False,
    ) -> RunningTrial:
        """Start a new run of a trial, whose workers continue from its latest checkpoint.

        Args:
            index: Its number in the search.
            trial_id: Its id.
            length: First length that the search requests.
            place: Environment variables of its place.
            is_closed: Whether the search does not train it further.
            was_complete: Whether it is recorded as complete, and a script restores it.

        Raises:
            RunError: If the workers cannot be started.
        """
        trial = self.database.get_trial(trial_id)
        if self.has_live_workers(trial):
            return self._attach_trial(index, trial)
        info = self._build_info(trial, length, is_closed=is_closed, was_complete=was_complete)
        self._open_log(info)
        output = self._open_output(info)
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
            self._stop_following(info)
            output.close()
            raise
        self.run.listener.trial_started(info, pid=workers.pid)
        if self.num_workers > 1:
            self.run.listener.notice(
                f"{self.num_workers} workers: processes {', '.join(map(str, workers.pids))}"
            )
        return RunningTrial(index, info, workers, output)

    def _open_output(self, info: TrialInfo) -> TrialOutput:
        frameworks = () if self.run.is_verbose else self.run.plugins.frameworks().values()
        notices = [notice for framework in frameworks for notice in framework.notices]
        return TrialOutput(info, self.run.listener, notices)

    def has_live_workers(self, trial: TrialRecord, *, is_needed: bool = True) -> bool:
        """Whether a trial has workers of an earlier runner that can be followed.

        Args:
            trial: The trial. Its workers are ended if they cannot be followed.
            is_needed: Whether the search trains the trial now; otherwise its workers are ended.
        """
        if not isinstance(self.launcher, SupportsAttach) or not trial.run_id:
            return False
        folder = self._find_folder(trial.id)
        run_id = self.launcher.find_run(folder, slots=self.num_workers) if is_needed else None
        if run_id != trial.run_id:
            self.launcher.abandon(folder)
        return run_id == trial.run_id

    def _attach_trial(self, index: int, trial: TrialRecord) -> RunningTrial:
        """Follow the workers that an earlier runner has started."""
        assert isinstance(self.launcher, SupportsAttach)
        info = read_run(self._find_folder(trial.id), trial.run_id)
        self.follower.follow(event_log_path(Path(info.trial_dir), info.run_id))
        output = self._open_output(info)
        workers = self.launcher.attach(info, keep_open=(self.lock.fd,), on_output=output)
        self.database.set_trial_state(trial.id, TrialState.RUNNING)
        self.run.listener.trial_started(info, pid=workers.pid)
        return RunningTrial(index, info, workers, output)

    def _find_folder(self, trial_id: int) -> Path:
        return get_trials_dir(self.run.environment, self.experiment_id) / str(trial_id)

    def _build_info(
        self, trial: TrialRecord, length: int | None, *, is_closed: bool, was_complete: bool
    ) -> TrialInfo:
        trial_id = trial.id
        settings = self.config.trial_settings()
        folder = self._find_folder(trial_id)
        latest = best = None
        if trial.run_id:  # otherwise it has neither checkpoints nor values
            # Unfinished checkpoints of killed workers are recovered first.
            recover_trial(self.database, self.storage, trial)
            latest = self._find_checkpoint(trial_id)
            # A trial that was killed while restoring a complete run is not recorded as complete.
            was_complete = was_complete or (is_closed and _was_restoring(folder, trial))
            # Values after the checkpoint belong to steps that are trained again.
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
                observers=[observer.entry.name for observer in self.run.plugins.observers()],
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
        """Return the newest intact checkpoint of a trial.

        For scripts, files are read as well, because after a failed restore the user would have to
        start the script again.

        Raises:
            CheckpointCorruptError: If all checkpoints of a script are damaged. Any other trial
                starts from its newest checkpoint and fails, and the search continues without it.
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
        """Whether a checkpoint contains the last step that a trial reported."""
        summaries = self.database.summarize_trials(
            self.experiment_id, metric=None, trial_ids=[trial.id]
        )
        end = summaries[trial.id].steps_completed
        return latest is not None and latest.steps_completed >= end

    def _open_log(self, info: TrialInfo) -> None:
        """Create the log of a run, and start following it.

        Raises:
            StorageFullError: If the disk is too full for the log.
            StorageError: If the disk is too full for the description of the run.
        """
        write_run(info)
        with open_log(info):
            pass  # writes the first line
        self.follower.follow(event_log_path(Path(info.trial_dir), info.run_id))

    def _stop_following(self, info: TrialInfo) -> None:
        self.follower.unfollow(event_log_path(Path(info.trial_dir), info.run_id))

    def release_trial(self, info: TrialInfo) -> None:
        """Stop following a run whose workers have exited, and ingest the rest of its log."""
        self._stop_following(info)
        home = self.run.environment.home
        ingest_event_logs(
            self.database, home, experiment_id=self.experiment_id, trial_id=info.trial_id
        )

    def answer_query(self, info: TrialInfo, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to a worker's query of the records.

        Args:
            info: The trial of the worker.
            question: The worker's message with ``question``, ``number`` and ``fields``.
        """
        answer = answer_question(
            self.no_wait_database,
            self.run.environment.home,
            info.trial_id,
            str(question["question"]),
            question["fields"],
        )
        return {"type": "answer", "number": question["number"], "answer": answer}

    def _validated_metric(self, checkpoint: CheckpointRecord) -> float | None:
        """Return the searcher's metric of a validation that followed a checkpoint, or None."""
        validation = self.database.validation_at(checkpoint.trial_id, checkpoint.steps_completed)
        # An earlier validation may belong to a run that reached this step without saving.
        if (
            validation is None
            or not validation.reported_at
            or validation.reported_at < checkpoint.started_at
        ):
            return None
        value = validation.metrics.get(self.config.searcher.metric)
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
    """Whether the configuration has no length, as in a script that passes none."""
    return config.searcher.name == "single" and config.searcher.max_length is None


def copy_model_code(model_dir: Path, folder: Path, config: ExperimentConfig) -> Path:
    """Copy the user's code without secrets, as the source for checkpoints; return the copy.

    Args:
        model_dir: Directory of the user's code.
        folder: Directory of the experiment. The copy of an earlier run is replaced.
        config: The configuration, with its secrets.
    """
    copy, new, old = (folder / f"saved-code{suffix}" for suffix in ("", ".new", ".old"))
    for path in (new, old):
        shutil.rmtree(path, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    copy_code(model_dir, list_code(model_dir), new, config=config.model_dump(mode="json"))
    # Workers of an earlier runner may be saving the code, so the copy is missing only for a moment.
    with contextlib.suppress(FileNotFoundError):
        copy.rename(old)
    new.rename(copy)
    shutil.rmtree(old, ignore_errors=True)
    return copy
