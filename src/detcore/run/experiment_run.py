"""Start and resume experiments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from detcore.config import ExperimentConfig, LoadedConfig, smoke_config
from detcore.contract.errors import DetcoreError, RunError
from detcore.contract.values import Control, ExperimentState
from detcore.launch import SupportsAttach, count_cores
from detcore.plugins import PluginManager
from detcore.plugins.delivery import Delivery
from detcore.records import (
    Database,
    DatabaseUnavailableError,
    LogFollower,
    ingest_event_logs,
    restore_secrets,
    save_secrets,
)
from detcore.run.changed_settings import change_settings
from detcore.run.checkpoint_source import find_source
from detcore.run.experiment_control import (
    create_locked_experiment,
    hold_experiment_lock,
    set_open_trial_states,
)
from detcore.run.interrupts import Interrupts, Requests
from detcore.run.live_retention import Retention
from detcore.run.named_parts import (
    create_search_method,
    find_launcher,
    open_launcher,
)
from detcore.run.results import ExperimentResult, read_results
from detcore.run.search_log import SearchLog
from detcore.run.search_loop import SearchLoop
from detcore.run.supervisor import Conclusion
from detcore.run.trial_start import (
    Slots,
    TrialStarter,
    copy_model_code,
    count_slots,
    get_experiment_dir,
    get_trials_dir,
)
from detcore.search import Search

if TYPE_CHECKING:
    from detcore.launch import Launcher
    from detcore.records import ExperimentRecord, RunnerLock
    from detcore.run.run_listener import RunListener, RunSettings
    from detcore.storage import StorageBackend


_JOIN_S = 5.0


def start_experiment(
    loaded: LoadedConfig, model_dir: Path, settings: RunSettings, *, test_mode: bool = False
) -> ExperimentResult:
    """Record a new experiment and run it to its end, or until it is interrupted.

    Args:
        loaded: The experiment file.
        model_dir: Directory of the user's code.
        settings: Environment, plugins and listener of the run.
        test_mode: Whether to train one batch, validate once and save one checkpoint.

    Raises:
        RunError: If the configuration requires a part that is not installed, or starts from a
            checkpoint that does not exist.
        SearchError: If the search method cannot be created.
        WorkerError: If the launcher cannot start the trials; nothing is recorded.
    """
    with _open_checked(loaded, settings, test_mode=test_mode) as (config, database, storage):
        recorded = _record_experiment(database, config, loaded.text, model_dir, settings)
        with (
            open_launcher(config, model_dir, settings, loaded=loaded) as launcher,
            recorded as (experiment_id, lock),
        ):
            run = ExperimentRun(
                database,
                settings,
                experiment_id,
                lock,
                config=config,
                model_dir=model_dir,
                test_mode=test_mode,
            )
            return run.run(launcher, storage)


def record_experiment(loaded: LoadedConfig, model_dir: Path, settings: RunSettings) -> int:
    """Record a new experiment that another process resumes, and return its id.

    Args:
        loaded: The experiment file.
        model_dir: Directory of the user's code.
        settings: As for `start_experiment`.

    Raises:
        DetcoreError: As `start_experiment`; nothing is recorded.
    """
    with _open_checked(loaded, settings, test_mode=False) as (config, database, _):
        recorded = _record_experiment(database, config, loaded.text, model_dir, settings)
        launcher = open_launcher(config, model_dir, settings, loaded=loaded)
        with launcher, recorded as (experiment_id, _):
            return experiment_id


@contextlib.contextmanager
def _record_experiment(
    database: Database,
    config: ExperimentConfig,
    text: str | None,
    model_dir: Path,
    settings: RunSettings,
) -> Iterator[tuple[int, RunnerLock]]:
    """Record a new experiment and its secrets, and yield its id and its lock."""
    plain = config.model_dump(mode="json")
    with create_locked_experiment(
        database,
        settings.environment,
        config=plain,
        config_text=text,
        model_dir=str(model_dir),
        name=config.name,
    ) as (experiment_id, lock):
        save_secrets(settings.environment.home, experiment_id, plain)
        yield experiment_id, lock


def check_experiment(
    loaded: LoadedConfig, settings: RunSettings, *, test_mode: bool = False
) -> ExperimentConfig:
    """Check an experiment before it is recorded.

    Args:
        loaded: The experiment file.
        settings: As for `start_experiment`.
        test_mode: As for `start_experiment`.

    Returns:
        The configuration to record, including the checkpoint from which it starts.

    Raises:
        RunError: If the configuration requires a part that is not installed, or starts from a
            checkpoint that does not exist.
        SearchError: If the search method cannot be created.
    """
    with _open_checked(loaded, settings, test_mode=test_mode) as (config, _, _):
        return config


@contextlib.contextmanager
def _open_checked(
    loaded: LoadedConfig, settings: RunSettings, *, test_mode: bool
) -> Iterator[tuple[ExperimentConfig, Database, StorageBackend]]:
    """Check an experiment like `check_experiment`, and yield the open records and storage."""
    config = smoke_config(loaded.config) if test_mode else loaded.config
    Search(
        create_search_method(config, settings.plugins), seed=config.reproducibility.experiment_seed
    )
    find_launcher(config, settings.plugins)
    count_slots(config, max_slots=settings.max_slots)
    with (
        Database.open(settings.environment.database_url) as database,
        _open_storage(config, settings) as storage,
    ):
        storage.probe()
        source = find_source(
            config.trial_settings(),
            database=database,
            storage=storage,
            environment=settings.environment,
            plugins=settings.plugins,
        )
        if source is not None:
            searcher = config.searcher.model_copy(update=source.searcher_fields)
            config = config.model_copy(update={"searcher": searcher})
        yield config, database, storage


def find_refusals(loaded: LoadedConfig, plugins: PluginManager) -> dict[str, DetcoreError]:
    """Return the errors that plugins raise for an otherwise valid experiment file, by section.

    A plugin's search method is created and proposes its first trials, and its launcher is looked
    up. For built-in parts, the check of the experiment file is sufficient.

    Args:
        loaded: The experiment file.
        plugins: Provide search methods and launchers.
    """
    config = loaded.config

    def check_searcher() -> None:
        method = plugins.searchers().get(config.searcher.name)
        if method is not None and not method.method.startswith("detcore."):
            Search(
                create_search_method(config, plugins), seed=config.reproducibility.experiment_seed
            )

    checks: dict[str, Callable[[], object]] = {
        "searcher": check_searcher,
        "launcher": lambda: find_launcher(config, plugins),
    }
    errors: dict[str, DetcoreError] = {}
    for section, check in checks.items():
        try:
            check()
        except DetcoreError as error:
            errors[section] = error
    return errors


def resume_experiment(
    experiment_id: int,
    settings: RunSettings,
    *,
    slots: int | None = None,
    launcher: str | None = None,
    test_mode: bool = False,
    changes: Mapping[str, object] = {},
) -> ExperimentResult:
    """Resume an experiment: its search from its log, its trials from their checkpoints.

    A complete experiment is unchanged.

    Args:
        experiment_id: The experiment.
        settings: As for `start_experiment`.
        slots: New number of workers per trial. Default: the recorded number.
        launcher: Name of the new launcher. Default: the recorded launcher.
        test_mode: Whether the experiment was recorded as a smoke run.
        changes: New values of settings, by dotted names; see `change_settings`.

    Raises:
        NotFoundError: If the experiment does not exist.
        ConfigError: If a changed setting cannot be used.
        RunError: If it is running, if a standalone script recorded it, if its batches are too small
            for the number of workers, or if a change would contradict the training so far.
        WorkerError: If the launcher cannot start the trials; the experiment is unchanged.
    """
    environment = settings.environment
    with Database.open(environment.database_url) as database:
        _check_resumable(database.get_experiment(experiment_id))
        with hold_experiment_lock(database, environment, experiment_id) as lock:
            ingest_event_logs(database, environment.home)
            # Read again, because the previous holder of the lock may have completed it.
            record = database.get_experiment(experiment_id)
            if changes:
                record = _change_settings(record, changes, database, settings)
            run = ExperimentRun(
                database,
                settings,
                experiment_id,
                lock,
                config=_restore_config(record, settings, slots=slots, launcher=launcher),
                model_dir=Path(record.model_dir),
                test_mode=test_mode,
            )
            if settings.is_server_managed and record.state is not ExperimentState.RUNNING:
                return run.read_result()  # it has ended while this process started
            if record.state == ExperimentState.COMPLETED:
                settings.listener.notice(f"experiment {experiment_id} is already complete")
                run.clean_up()
                return run.read_result()
            if settings.is_server_managed:
                return run.run()  # an error is recorded
            with open_launcher(run.config, run.model_dir, settings) as ready:
                _refuse_lost_jobs(database, experiment_id, ready)
                return run.run(ready)


def _refuse_lost_jobs(database: Database, experiment_id: int, launcher: Launcher) -> None:
    """Raise a RunError if jobs may still run that a launcher cannot find."""
    jobs = database.list_running_jobs(experiment_id)
    if jobs and not isinstance(launcher, SupportsAttach):
        raise RunError(
            f"the jobs {', '.join(jobs)} of experiment {experiment_id} may still run, and would "
            "train the same trials.\nResume with the launcher that submitted them:  "
            f"detcore run --resume {experiment_id} --launcher NAME"
        )


def _check_resumable(record: ExperimentRecord) -> None:
    """Raise a RunError if no runner can resume an experiment."""
    if record.config.get("is_standalone"):
        raise RunError(
            f"experiment {record.id} was recorded by a standalone script, which only the user can "
            "start.\nStart the script again. With core.init(resume=True) it resumes."
        )
    if not Path(record.model_dir).is_dir():
        raise RunError(
            f"experiment {record.id} trains the code in {record.model_dir}, "
            "which does not exist any more.\nRestore the directory, then resume with:\n"
            f"  detcore run --resume {record.id}"
        )


def _change_settings(
    record: ExperimentRecord,
    changes: Mapping[str, object],
    database: Database,
    settings: RunSettings,
) -> ExperimentRecord:
    """Change settings of an experiment, show the changes, and return its new record."""
    lines = change_settings(
        record,
        changes,
        database=database,
        environment=settings.environment,
        plugins=settings.plugins,
    )
    for line in lines:
        settings.listener.notice(f"experiment {record.id}: {line}")
    return database.get_experiment(record.id)


class ScriptTrial(NamedTuple):
    """A script that is the one trial of its experiment.

    Attributes:
        num_workers: Number of its processes; >= 1.
        keeps_all: Whether all of its checkpoints are kept.
    """

    num_workers: int
    keeps_all: bool


class ExperimentRun:
    """Runs one experiment.

    Args:
        database: The records.
        settings: Environment, plugins and listener of the run.
        experiment_id: The experiment.
        lock: Its lock, which this process holds and the workers inherit.
        config: Its configuration, with secrets.
        model_dir: Directory of the user's code.
        test_mode: Whether to train one batch, validate once and save one checkpoint.
        script: The running script that is its only trial. None if the runner starts trials.
    """

    def __init__(
        self,
        database: Database,
        settings: RunSettings,
        experiment_id: int,
        lock: RunnerLock,
        *,
        config: ExperimentConfig,
        model_dir: Path,
        test_mode: bool,
        script: ScriptTrial | None = None,
    ) -> None:
        self._interrupts = Interrupts()
        self._database = database.with_retries(
            settings.listener.notice, should_stop=lambda: self._interrupts.is_urgent
        )
        self._no_wait_database = database
        self._settings = settings
        self._experiment_id = experiment_id
        self._lock = lock
        self.config = config
        self.model_dir = model_dir
        self._test_mode = test_mode
        self._script = script
        self._keeps_all = script is not None and script.keeps_all
        self._retention = Retention(
            database,
            experiment_id,
            home=settings.environment.home,
            open_storage=lambda: _open_storage(self.config, settings),
            notice=settings.listener.notice,
        )
        self._conclusion: Conclusion | None = None

    def run(
        self, launcher: Launcher | None = None, storage: StorageBackend | None = None
    ) -> ExperimentResult:
        """Run the experiment until it ends or is interrupted.

        Args:
            launcher: Starts the trials. Default: the configured launcher.
            storage: Stores the checkpoints. Default: the configured storage.
        """
        database, experiment_id = self._database, self._experiment_id
        if not self._settings.is_server_managed:
            database.request_control(experiment_id, None)
        database.set_experiment_state(experiment_id, ExperimentState.RUNNING)
        conclusion = Conclusion(state=ExperimentState.ERROR)
        try:
            with _deliver_events(self._no_wait_database, self._settings, experiment_id):
                conclusion = self._run_search(launcher, storage)
        except KeyboardInterrupt:  # before the first trial was started
            conclusion = Conclusion(state=ExperimentState.PAUSED, is_external=True)
            raise
        except DetcoreError as error:
            conclusion = Conclusion(
                state=ExperimentState.ERROR, error=str(error).partition("\n")[0]
            )
            if isinstance(error, DatabaseUnavailableError) and self._settings.is_server_managed:
                conclusion = Conclusion(state=ExperimentState.PAUSED, is_external=True)
            raise
        finally:
            state = self._record_end(conclusion)
        self._conclusion = conclusion
        # A paused experiment is resumed or pruned later: the machine may be shutting down.
        if state not in (ExperimentState.PAUSED, ExperimentState.RUNNING):
            self.clean_up()
        return self.read_result()

    def _record_end(self, conclusion: Conclusion) -> ExperimentState:
        """Record the end, including a request after the last trial; return the recorded state."""
        database, experiment_id = self._database, self._experiment_id
        is_resumed_by_server = conclusion.is_external and self._settings.is_server_managed
        while True:
            state = conclusion.state
            requested = database.get_control_request(experiment_id)
            if not self._lock.is_held():
                return ExperimentState.RUNNING  # another process records it
            if state is ExperimentState.PAUSED:
                if requested in (Control.CANCEL, Control.KILL):
                    state = ExperimentState.CANCELED
                    set_open_trial_states(database, experiment_id, state)
                elif requested is None and is_resumed_by_server:
                    # The server resumes it: the machine ended it, its records were unreachable, or
                    # the user resumed it. Later requests are handled by the server.
                    return ExperimentState.RUNNING
            if database.conclude_experiment(
                experiment_id, state, asked=requested, error=conclusion.error
            ):
                return state

    def _run_search(self, launcher: Launcher | None, storage: StorageBackend | None) -> Conclusion:
        config, settings, listener = self.config, self._settings, self._settings.listener
        code_dir: Path | None = None
        if self._script is None:
            num_workers, slots = count_slots(config, max_slots=settings.max_slots)
            folder = get_experiment_dir(settings.environment, self._experiment_id)
            code_dir = copy_model_code(self.model_dir, folder, config)
        else:
            num_workers, slots = self._script.num_workers, Slots(1, 1)
        listener.search_started(config)
        with contextlib.ExitStack() as stack:
            if storage is None:
                storage = stack.enter_context(_open_storage(config, settings))
            log = SearchLog(
                self._database,
                self._experiment_id,
                config,
                settings.plugins,
                trials_dir=get_trials_dir(settings.environment, self._experiment_id),
            )
            if self._script is None:
                _warn_if_overloaded(num_workers, slots, log, listener)
            if launcher is None:
                ready = open_launcher(config, self.model_dir, settings)
                launcher = stack.enter_context(ready)
                _refuse_lost_jobs(self._no_wait_database, self._experiment_id, launcher)
            follower = LogFollower(self._no_wait_database)
            stack.callback(follower.stop, _JOIN_S)
            starter = TrialStarter(
                database=self._database,
                no_wait_database=self._no_wait_database,
                run=settings,
                experiment_id=self._experiment_id,
                config=config,
                code_dir=code_dir,
                model_dir=str(self.model_dir),
                test_mode=self._test_mode,
                num_workers=num_workers,
                storage=storage,
                launcher=launcher,
                lock=self._lock,
                follower=follower,
            )
            stack.enter_context(self._interrupts.note_signals())
            loop = SearchLoop(
                starter,
                log,
                slots,
                interrupts=self._interrupts,
                requests=Requests(self._no_wait_database, self._experiment_id, self._lock),
                max_restarts=config.max_restarts,
                starts_once=self._script is not None,
            )
            if not self._keeps_all:
                stack.enter_context(self._retention.delete_in_background())
            return loop.run()

    def clean_up(self) -> None:
        """Delete the checkpoints that the experiment does not keep.

        If a deletion fails, the next pass (``detcore checkpoint prune``) repeats it.
        """
        if self._keeps_all:
            return
        try:
            plan = self._retention.apply_policy()
        except (DetcoreError, OSError) as error:
            self._settings.listener.notice(
                f"some checkpoints that are not kept could not be deleted: {error}\n"
                f"Try again with:  detcore checkpoint prune {self._experiment_id}"
            )
            return
        number = self._retention.num_deleted
        if number:
            self._settings.listener.notice(
                f"{number} checkpoint{'s' if number > 1 else ''} deleted, {len(plan.kept)} kept "
                "(checkpoint_storage.save_experiment_best, save_trial_best, save_trial_latest)"
            )

    def read_result(self) -> ExperimentResult:
        """Read the state and the results of the experiment."""
        searcher, conclusion = self.config.searcher, self._conclusion
        return ExperimentResult(
            experiment_id=self._experiment_id,
            state=self._database.get_experiment(self._experiment_id).state,
            trials=read_results(
                self._database,
                self._experiment_id,
                metric=searcher.metric,
                smaller_is_better=searcher.smaller_is_better,
            ),
            metric=searcher.metric,
            smaller_is_better=searcher.smaller_is_better,
            error=conclusion.error if conclusion else None,
            reported_metrics=tuple(
                name
                for kind, name in self._database.metric_names(self._experiment_id)
                if kind == "validation"
            ),
            was_killed=conclusion.was_killed if conclusion else False,
        )


@contextlib.contextmanager
def _deliver_events(
    database: Database, settings: RunSettings, experiment_id: int
) -> Iterator[None]:
    """Deliver events to observers in the background during the block, and shortly after it.

    Undelivered events of earlier runs under the same home are delivered first, then the reports of
    this experiment's trials. The next run delivers the remaining events.
    """
    environment = settings.environment
    delivery = Delivery(
        database, environment.home, settings.plugins.observers(), experiment_id=experiment_id
    )
    try:
        yield
    finally:
        left_s, wait_s = settings.seconds_left(), environment.delivery_wait_s
        wait_s = wait_s if left_s is None else min(wait_s, left_s / 2)
        for name, trials in sorted(delivery.close(wait_s).items()):
            some = f"{trials} trial{'s' if trials > 1 else ''}"
            settings.listener.notice(
                f"plugin {name} has not received all events of {some} yet. The next run delivers "
                "them. To deliver them now:  detcore plugins deliver"
            )


@contextlib.contextmanager
def _open_storage(config: ExperimentConfig, settings: RunSettings) -> Iterator[StorageBackend]:
    from detcore.storage import open_storage

    storage = open_storage(
        config.trial_settings().checkpoint_storage,
        home=settings.environment.home,
        plugins=settings.plugins,
    )
    with contextlib.closing(storage):
        yield storage


def _restore_config(
    record: ExperimentRecord, settings: RunSettings, *, slots: int | None, launcher: str | None
) -> ExperimentConfig:
    """Return a recorded configuration with its secrets, and with new slots or launcher."""
    restored = restore_secrets(settings.environment.home, record.id, record.config)
    if restored.missing:
        settings.listener.notice(
            f"{' and '.join(restored.missing)} of the experiment file are missing from "
            f"{restored.path}: the environment's credentials are used"
        )
    config = ExperimentConfig.model_validate(restored.config)
    if slots is not None:
        config = _set_slots(config, slots)
    if launcher is not None:
        config = config.model_copy(update={"launcher": launcher})
    return config


def _set_slots(config: ExperimentConfig, slots: int) -> ExperimentConfig:
    batch_size = config.hyperparameters.get("global_batch_size")
    if isinstance(batch_size, int) and batch_size < slots:
        raise RunError(
            f"{slots} workers, but hyperparameters.global_batch_size is {batch_size}: each worker "
            f"needs at least one record per batch.\nResume with at most {batch_size} slots."
        )
    resources = config.resources.model_copy(update={"slots_per_trial": slots})
    return config.model_copy(update={"resources": resources})


def _warn_if_overloaded(
    num_workers: int, slots: Slots, log: SearchLog, listener: RunListener
) -> None:
    cores = count_cores()
    trials = min(slots.max_concurrent, log.search.num_training)
    workers = num_workers * max(1, trials)
    if workers > cores:
        listener.notice(
            f"{workers} workers share {cores} CPU core{'s' if cores > 1 else ''}: without a GPU "
            f"each, more than {cores} make training slower, not faster"
        )
