"""Start an experiment, or go on with one."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.checkpoint import CheckpointSource, find_source, pin_source
from detcore.config import (
    ExperimentConfig,
    LoadedConfig,
    resolve_constants,
    smoke_config,
    trial_seed,
)
from detcore.database import Database, ingest_spools, keep_secrets, restore_secrets
from detcore.errors import RunError
from detcore.launch import LocalLauncher, describe_exit, num_cores
from detcore.launch.worker import EXIT_COME_BACK, EXIT_INVALID_HP
from detcore.runner._lock import experiment_lock
from detcore.types import ExperimentState, TrialInfo

if TYPE_CHECKING:
    from detcore.environment import Environment
    from detcore.hooks import PluginManager
    from detcore.runner._listener import RunListener
    from detcore.storage import StorageBackend

__all__ = [
    "ExperimentResult",
    "RunSettings",
    "TrialResult",
    "resume_experiment",
    "start_experiment",
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Where a run keeps its things, and which plugins it may use."""

    environment: Environment
    plugins: PluginManager
    listener: RunListener


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """How far a trial came.

    Attributes:
        best_validation: The best value of the searcher's metric, or None.
        latest_checkpoint: UUID of the newest checkpoint, or None.
    """

    trial_id: int
    state: str
    steps_completed: int
    best_validation: float | None
    latest_checkpoint: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult:
    """How an experiment stands when its runner ends.

    Attributes:
        error: What went wrong, in a line, or None.
        was_cut_short: Whether a second Ctrl-C ended it without a checkpoint.
    """

    experiment_id: int
    state: ExperimentState
    trials: tuple[TrialResult, ...]
    metric: str
    error: str | None = None
    was_cut_short: bool = False


def start_experiment(
    loaded: LoadedConfig, model_dir: Path, settings: RunSettings, *, test_mode: bool = False
) -> ExperimentResult:
    """Record a new experiment and run it to its end, or until it is interrupted.

    Args:
        loaded: The experiment file.
        model_dir: Folder of the user's code.
        settings: Where and with what.
        test_mode: One batch, one validation, one checkpoint.

    Raises:
        RunError: If the configuration asks for what this release cannot do, or for a checkpoint
            to start from that is not there.
    """
    config = smoke_config(loaded.config) if test_mode else loaded.config
    _check_supported(config, settings.plugins)
    plain = config.model_dump(mode="json")
    with _open_storage(plain, settings) as storage:
        storage.probe()
    seed = plain["reproducibility"]["experiment_seed"]
    hparams = resolve_constants(config.hyperparameters, seed=seed)
    with Database.open(settings.environment.database_url) as database:
        pin_source(plain, _find_source(plain, database, settings))
        experiment_id = database.create_experiment(
            config=plain,
            config_text=loaded.text,
            model_dir=str(model_dir),
            name=config.name,
        )
        keep_secrets(settings.environment.home, experiment_id, plain)
        trial_id = database.create_trial(
            experiment_id=experiment_id, hparams=hparams, seed=trial_seed(seed)
        )
        folder = _experiment_folder(settings.environment, experiment_id)
        database.set_trial_dir(trial_id, str(folder / "trials" / str(trial_id)))
        with experiment_lock(folder, experiment_id) as lock:
            return _Run(database, settings, experiment_id, lock, test_mode).run()


def resume_experiment(
    experiment_id: int, settings: RunSettings, *, slots: int | None = None
) -> ExperimentResult:
    """Go on with an experiment from its latest checkpoint; one that is complete is left alone.

    Args:
        experiment_id: Which one.
        settings: Where and with what.
        slots: Number of workers from now on; default: as recorded.

    Raises:
        NotFoundError: If there is no such experiment.
        RunError: If it is running, or if its batches are too small for so many workers.
    """
    environment = settings.environment
    with Database.open(environment.database_url) as database:
        record = database.get_experiment(experiment_id)
        if not Path(record.model_dir).is_dir():
            raise RunError(
                f"experiment {experiment_id} trains the code in {record.model_dir}, "
                "which is not there any more.\nPut the folder back, then resume again."
            )
        with experiment_lock(_experiment_folder(environment, experiment_id), experiment_id) as lock:
            ingest_spools(database, environment.home)
            run = _Run(database, settings, experiment_id, lock, test_mode=False, slots=slots)
            if record.state == ExperimentState.COMPLETED:
                settings.listener.notice(f"experiment {experiment_id} is complete already")
                return run.result()
            return run.run()


class _Run:
    """One runner process at work on one experiment."""

    def __init__(
        self,
        database: Database,
        settings: RunSettings,
        experiment_id: int,
        lock_fd: int,
        test_mode: bool,
        slots: int | None = None,
    ) -> None:
        self._database = database
        self._settings = settings
        self._experiment_id = experiment_id
        self._lock_fd = lock_fd
        record = database.get_experiment(experiment_id)
        restored = restore_secrets(settings.environment.home, experiment_id, record.config)
        if restored.missing:
            settings.listener.notice(
                f"{' and '.join(restored.missing)} of the experiment file are not in "
                f"{restored.path}: the environment's credentials are used"
            )
        self._plain: Mapping[str, Any] = restored.config
        if slots is not None:
            self._plain = _with_slots(restored.config, slots)
        self._model_dir = record.model_dir
        self._test_mode = test_mode
        self._error: str | None = None
        self._damaged: tuple[str, str] | None = None
        self._was_cut_short = False

    def run(self) -> ExperimentResult:
        """Run what is left to run; single trial searches have one trial."""
        self._database.set_experiment_state(self._experiment_id, ExperimentState.RUNNING)
        state = ExperimentState.ERROR
        try:
            with _Interrupts() as interrupts:
                state = self._run_trial(interrupts)
                while self._damaged is not None and not interrupts.was_interrupted:
                    self._give_up_checkpoint(*self._damaged)
                    state = self._run_trial(interrupts)
        finally:
            self._database.set_experiment_state(self._experiment_id, state, error=self._error)
        return self.result()

    def _run_trial(self, interrupts: _Interrupts) -> ExperimentState:
        trial = self._database.list_trials(self._experiment_id)[0]
        info = self._trial_info(trial.id)
        listener = self._settings.listener
        manager = self._settings.plugins
        self._error, self._damaged = None, None
        slots = _slots(info.config)
        _tell_if_crowded(slots, listener)
        workers = LocalLauncher().start(
            info,
            home=self._settings.environment.home,
            slots=slots,
            keep_open=(self._lock_fd,),
            on_output=listener.output,
            disabled_plugins=manager.disabled,
            allowed_plugins=manager.allowed,
        )
        self._database.set_trial_state(trial.id, ExperimentState.RUNNING)
        code = 1
        try:
            listener.trial_started(info, pid=workers.pid)
            if slots > 1:
                listener.notice(f"{slots} workers: processes {', '.join(map(str, workers.pids))}")
            for event in workers.events():
                if event is None:
                    interrupts.forward(workers, listener)
                    listener.tick()
                    continue
                if event.type == "finished" and event.fields.get("error"):
                    self._error = str(event.fields["error"])
                if event.type == "damaged":
                    self._damaged = (str(event.fields["uuid"]), str(event.fields["error"]))
                listener.event(info, event)
        except BaseException:
            workers.kill()
            raise
        finally:
            code = workers.close()
            self._was_cut_short = interrupts.is_urgent and code != 0
            state = self._ended(trial.id, code, workers.first_failed)
        return state

    def _give_up_checkpoint(self, uuid: str, error: str) -> None:
        """Record that a checkpoint cannot be restored, and say what is done instead.

        Raises:
            RunError: If there is no other one: training again from the start is not what was asked.
        """
        self._database.checkpoint_damaged(uuid)
        trial = self._database.list_trials(self._experiment_id)[0]
        other = self._database.latest_checkpoint(trial.id)
        what = error.splitlines()[0]
        if other is None:
            raise RunError(
                f"{what}\nIt was the only checkpoint of trial {trial.id}, so there is nothing to "
                "go on from.\nIf its files can be brought back: detcore checkpoint repair "
                f"{uuid}; else start the experiment again."
            )
        self._settings.listener.notice(
            f"{what} Going on from the one before: {other.uuid}, {other.steps_completed} batches"
        )

    def _ended(self, trial_id: int, code: int, first_failed: int | None) -> ExperimentState:
        """Record how the workers ended, whatever they were able to say themselves."""
        ingest_spools(self._database, self._settings.environment.home)
        if code == 0:
            state = ExperimentState.COMPLETED
        elif code == EXIT_COME_BACK or self._was_cut_short:
            state = ExperimentState.PAUSED
        else:
            state = ExperimentState.ERROR
            if code == EXIT_INVALID_HP and self._error is None:
                self._error = "the trial rejected its hyperparameters"
            if first_failed:
                # Rank 0 may be able to tell only that it lost the other one.
                own = f"; rank 0: {self._error}" if self._error else ""
                self._error = f"rank {first_failed} {describe_exit(code)}{own}"
            elif self._error is None:
                self._error = f"the worker {describe_exit(code)}"
        self._database.set_trial_state(trial_id, state, error=self._error)
        return state

    def _trial_info(self, trial_id: int) -> TrialInfo:
        trial = self._database.get_trial(trial_id)
        latest = self._recover_checkpoints(trial_id)
        source = None if latest else _find_source(self._plain, self._database, self._settings)
        return TrialInfo(
            experiment_id=self._experiment_id,
            trial_id=trial_id,
            run_id=self._database.start_run(trial_id),
            trial_seed=trial.seed,
            hparams=trial.hparams,
            config=self._plain,
            model_dir=self._model_dir,
            trial_dir=str(
                _experiment_folder(self._settings.environment, self._experiment_id)
                / "trials"
                / str(trial_id)
            ),
            database_url=self._settings.environment.database_url,
            latest_checkpoint=latest.uuid if latest else None,
            steps_completed=latest.steps_completed if latest else 0,
            test_mode=self._test_mode,
            source_checkpoint=source.checkpoint if source else None,
            source_storage=source.storage if source else None,
        )

    def _recover_checkpoints(self, trial_id: int) -> Any:
        """Settle what a killed worker left half written; return the newest checkpoint."""
        from detcore.checkpoint import recover_checkpoints

        with _open_storage(self._plain, self._settings) as storage:
            recover_checkpoints(self._database, storage, trial_id)
        return self._database.latest_checkpoint(trial_id)

    def result(self) -> ExperimentResult:
        """Read how the experiment stands."""
        searcher = self._plain["searcher"]
        trials = []
        for trial in self._database.list_trials(self._experiment_id):
            best = self._database.trial_best_validation(
                trial.id, searcher["metric"], smaller_is_better=searcher["smaller_is_better"]
            )
            latest = self._database.latest_checkpoint(trial.id)
            steps = self._database.trial_steps_completed(trial.id)
            trials.append(
                TrialResult(
                    trial_id=trial.id,
                    state=str(trial.state.value),
                    steps_completed=max(steps, latest.steps_completed if latest else 0),
                    best_validation=best.metrics[searcher["metric"]] if best else None,
                    latest_checkpoint=latest.uuid if latest else None,
                )
            )
        record = self._database.get_experiment(self._experiment_id)
        return ExperimentResult(
            experiment_id=self._experiment_id,
            state=record.state,
            trials=tuple(trials),
            metric=searcher["metric"],
            error=self._error,
            was_cut_short=self._was_cut_short,
        )


class _Interrupts:
    """SIGINT, SIGTERM and SIGUSR1 are noted; the runner's loop passes them on.

    A second SIGINT ends the worker without waiting for its checkpoint.
    """

    _NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self) -> None:
        self._received: list[int] = []
        self.is_urgent = False
        self._num_forwarded = 0
        self._before: dict[int, Any] = {}

    @property
    def was_interrupted(self) -> bool:
        """Whether any of the signals has come."""
        return bool(self._received)

    def __enter__(self) -> _Interrupts:
        for number in self._NUMBERS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: object) -> None:
        self.is_urgent = self.is_urgent or (number == signal.SIGINT and bool(self._received))
        if number not in self._received:
            self._received.append(number)

    def forward(self, worker: Any, listener: RunListener) -> None:
        """Pass each kind of interrupt on to the worker, once.

        As it is: what ends the machine gives less time than a person does.
        """
        if self.is_urgent:
            worker.kill()
        elif len(self._received) > self._num_forwarded:
            number = self._received[self._num_forwarded]
            self._num_forwarded += 1
            worker.signal(number)
            listener.notice(
                f"{signal.Signals(number).name}: the trial checkpoints at the next batch "
                "boundary and ends (Ctrl-C again: end now, without a checkpoint)"
            )


@contextlib.contextmanager
def _open_storage(plain: Mapping[str, Any], settings: RunSettings) -> Iterator[StorageBackend]:
    from detcore.storage import open_storage

    storage = open_storage(
        plain.get("checkpoint_storage"), home=settings.environment.home, plugins=settings.plugins
    )
    with contextlib.closing(storage):
        yield storage


def _find_source(
    plain: Mapping[str, Any], database: Database, settings: RunSettings
) -> CheckpointSource | None:
    with _open_storage(plain, settings) as storage:
        return find_source(
            plain["searcher"],
            database=database,
            storage=storage,
            environment=settings.environment,
            plugins=settings.plugins,
        )


def _experiment_folder(environment: Environment, experiment_id: int) -> Path:
    return environment.home / "experiments" / str(experiment_id)


def _check_supported(config: ExperimentConfig, plugins: PluginManager) -> None:
    searchers = plugins.searchers()
    if config.searcher.name not in searchers:
        raise RunError(
            f"searcher.name is {config.searcher.name!r}; searchers here: "
            f"{', '.join(sorted(searchers))}.\n"
            "Other search methods come with plugins, or with a later release of detcore."
        )


def _slots(plain: Mapping[str, Any]) -> int:
    """Return the number of workers; 0 slots are one worker, on the CPU."""
    return max(1, int(plain["resources"]["slots_per_trial"]))


def _with_slots(plain: Mapping[str, Any], slots: int) -> dict[str, Any]:
    batch_size = plain["hyperparameters"].get("global_batch_size")
    if isinstance(batch_size, int) and batch_size < slots:
        raise RunError(
            f"{slots} workers, but hyperparameters.global_batch_size is {batch_size}: each worker "
            f"needs at least one record per batch.\nGo on with at most {batch_size}."
        )
    return {**plain, "resources": {**plain["resources"], "slots_per_trial": slots}}


def _tell_if_crowded(slots: int, listener: RunListener) -> None:
    cores = num_cores()
    if slots > cores:
        listener.notice(
            f"{slots} workers share {cores} CPU core{'s' if cores > 1 else ''}: without a GPU "
            f"each, more than {cores} make training slower, not faster"
        )
