"""Opening the parts of a context, each registered to be closed in reverse order."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from detcore.core._events import EventPipe
from detcore.core._info import read_trial_info
from detcore.core._observers import Observers
from detcore.core._outcome import Outcome
from detcore.core._recorder import Recorder
from detcore.core._records import is_server, open_embedded, open_remote, patience
from detcore.core._replies import open_replies
from detcore.core._searcher import SearcherContext
from detcore.core._train import TrainContext
from detcore.errors import StorageFullError, UnavailableError
from detcore.types import ExperimentState

if TYPE_CHECKING:
    from detcore.checkpoint import CheckpointContext, TransferObserver
    from detcore.core._modes import TensorboardMode
    from detcore.core._preempt import PreemptContext
    from detcore.core._records import Reporting
    from detcore.core._script import ScriptExperiment
    from detcore.database import Database, WorkerRecords
    from detcore.distributed import DistributedContext
    from detcore.environment import Environment
    from detcore.hooks import PluginManager
    from detcore.storage import StorageBackend
    from detcore.types import TrialInfo

__all__ = ["Ending", "Parts", "Settings", "open_parts"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a context was made with."""

    environment: Environment
    distributed: DistributedContext
    preempt: PreemptContext
    checkpoint_storage: str | Mapping[str, object] | None
    tensorboard_mode: TensorboardMode
    script: ScriptExperiment
    resume: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What exists while a context is open; records and observers only on the chief."""

    info: TrialInfo
    records: WorkerRecords | None
    plugins: PluginManager
    events: EventPipe
    observers: Observers | None
    checkpoint: CheckpointContext
    train: TrainContext
    searcher: SearcherContext


@dataclasses.dataclass(slots=True)
class Ending:
    """How the trial ends; set before the parts are closed."""

    outcome: Outcome = dataclasses.field(default_factory=Outcome.failed_to_start)


def open_parts(settings: Settings, stack: contextlib.ExitStack, ending: Ending) -> Parts:
    """Open records, storage and signal handling.

    Of several workers, the chief opens the records and tells the others which trial it is.

    Args:
        settings: What with.
        stack: Closes what was opened.
        ending: Read when the stack is closed.
    """
    distributed = settings.distributed
    stack.callback(distributed.close)
    if distributed.rank:
        return _open_worker(settings, stack)
    try:
        parts = _open_chief(settings, stack, ending)
    except Exception as error:
        distributed.__exit__(type(error), error, error.__traceback__)
        raise
    distributed.broadcast(parts.info)
    return parts


def _open_chief(settings: Settings, stack: contextlib.ExitStack, ending: Ending) -> Parts:
    environment = settings.environment
    plugins = _open_plugins(environment)
    managed = read_trial_info(environment) if environment.trial_info is not None else None
    reporting: Reporting | None = None
    database: Database | None = None
    if managed is not None and is_server(managed.database_url):
        # First: what follows may have something to record.
        reporting = open_remote(
            managed, environment, stack, wait_s=lambda: _delivery_wait_s(settings)
        )
    else:
        database = _open_database(managed, environment, stack)
    patient = None if database is None else database.patient(patience())
    storage = _open_storage(managed, settings, plugins, stack)
    # A storage that cannot be written to is found out now, not after an hour of training.
    storage.probe()
    if managed is None:
        assert database is not None  # scripts by themselves record in one
        info = _record_script(database, environment, plugins, storage, settings)
    else:
        records = patient if reporting is None else reporting.records
        assert records is not None  # one of the two is there
        info = _settle(managed, records, storage)
    events = EventPipe(environment.events_fd)
    observers = Observers(info, events, plugins, wait_s=lambda: _delivery_wait_s(settings))
    # Closed behind the end of the trial, which is written there, too.
    late = stack.enter_context(contextlib.ExitStack())
    stack.callback(_record_end, ending, observers, None if managed else patient, info, storage)
    if reporting is None:
        assert database is not None  # opened above
        reporting = open_embedded(info, database, late)
    stack.callback(reporting.settle)
    stack.callback(events.close)
    recorder = Recorder(
        info,
        records=reporting.records,
        spool=reporting.spool,
        events=events,
        on_reported=observers.metrics,
    )
    train = _make_train(info, settings, storage, recorder, stack)
    checkpoint = _make_checkpoint(info, reporting.records, storage, settings, observers)
    stack.callback(settings.preempt.close)
    settings.preempt.start()
    observers.started(reporting.spool, reporting.add_missing)
    return Parts(
        info=info,
        records=reporting.records,
        plugins=plugins,
        events=events,
        observers=observers,
        checkpoint=checkpoint,
        train=train,
        searcher=SearcherContext(
            info,
            distributed=settings.distributed,
            events=events,
            replies=None if managed is None else open_replies(environment.replies_fd),
        ),
    )


def _open_worker(settings: Settings, stack: contextlib.ExitStack) -> Parts:
    """Open what a worker other than the chief has: no records, and nobody listens to it."""
    plugins = _open_plugins(settings.environment)
    info: TrialInfo = settings.distributed.broadcast(None)  # type: ignore[assignment]  # the chief's
    storage = _open_storage(info, settings, plugins, stack)
    events = EventPipe(None)
    train = _make_train(info, settings, storage, None, stack)
    stack.callback(settings.preempt.close)
    settings.preempt.start()
    return Parts(
        info=info,
        records=None,
        plugins=plugins,
        events=events,
        observers=None,
        checkpoint=_make_checkpoint(info, None, storage, settings, None),
        train=train,
        searcher=SearcherContext(info, distributed=settings.distributed, events=events),
    )


def _open_plugins(environment: Environment) -> PluginManager:
    from detcore.hooks import PluginManager

    return PluginManager(environment)


def _open_database(
    managed: TrialInfo | None, environment: Environment, stack: contextlib.ExitStack
) -> Database:
    from detcore.database import Database

    if managed is None:
        return stack.enter_context(Database.open(environment.database_url))
    # Its runner used it a moment ago.
    url = managed.database_url
    return stack.enter_context(patience().until_there(lambda: Database.open(url)))


def _open_storage(
    managed: TrialInfo | None,
    settings: Settings,
    plugins: PluginManager,
    stack: contextlib.ExitStack,
) -> StorageBackend:
    from detcore.storage import open_storage

    spec = settings.checkpoint_storage
    if spec is None and managed is not None:
        spec = managed.config.get("checkpoint_storage")
    storage = open_storage(spec, home=settings.environment.home, plugins=plugins)
    stack.callback(storage.close)
    return storage


def _settle(managed: TrialInfo, records: WorkerRecords, storage: StorageBackend) -> TrialInfo:
    """Settle what an earlier, killed process of this trial left in this storage.

    The runner has done so already in the trial's own storage; a script may name another one.
    """
    from detcore.checkpoint import recover_checkpoints

    try:
        recover_checkpoints(records, storage, managed.trial_id)
    except UnavailableError as away:
        import logging

        logging.getLogger("detcore").warning(
            "what killed runs of the trial left in %s is settled when it starts again: %s",
            storage.url, " ".join(str(away).split()),
        )  # fmt: skip
    return managed


def _record_script(
    database: Database,
    environment: Environment,
    plugins: PluginManager,
    storage: StorageBackend,
    settings: Settings,
) -> TrialInfo:
    from detcore.core import _standalone

    if settings.environment.master is not None:
        import logging

        logging.getLogger("detcore").warning(
            "this script is recorded where DETCORE_HOME and DETCORE_DB say, and not by %s of the "
            "environment: a server records what is handed in to it (detcore run --master)",
            settings.environment.master,
        )
    _standalone.settle_dead_scripts(database, environment, plugins)
    info = _standalone.create_records(
        database,
        environment,
        plugins,
        storage,
        settings.script,
        spec=settings.checkpoint_storage,
        resume=settings.resume,
    )
    start = "from the start"
    if info.latest_checkpoint is not None:
        start = f"from batch {info.steps_completed} (checkpoint {info.latest_checkpoint})"
    _say(
        info,
        f"{start}; records in {database.url}; look at it: detcore trial describe {info.trial_id}",
    )
    return info


def _say(info: TrialInfo, text: str) -> None:
    """Tell the person who started a script; standard output is the script's own."""
    print(f"experiment {info.experiment_id}, trial {info.trial_id}: {text}", file=sys.stderr)


def _make_train(
    info: TrialInfo,
    settings: Settings,
    storage: StorageBackend,
    recorder: Recorder | None,
    stack: contextlib.ExitStack,
) -> TrainContext:
    train = TrainContext(
        info,
        distributed=settings.distributed,
        recorder=recorder,
        storage=storage,
        tensorboard_mode=settings.tensorboard_mode,
    )
    stack.callback(train.close)
    return train


def _make_checkpoint(
    info: TrialInfo,
    records: WorkerRecords | None,
    storage: StorageBackend,
    settings: Settings,
    observers: Observers | None,
) -> CheckpointContext:
    from detcore.checkpoint import CheckpointContext, CheckpointOwner

    return CheckpointContext(
        storage=storage,
        distributed=settings.distributed,
        database=records,
        owner=CheckpointOwner(trial_id=info.trial_id, experiment_id=info.experiment_id),
        parent=info.latest_checkpoint,
        on_saved=observers.checkpoint_saved if observers else None,
        observer=_make_observer(settings),
    )


def _make_observer(settings: Settings) -> TransferObserver | None:
    """Return what shows long transfers on the terminal of a script.

    The terminal of a runner's worker belongs to the runner, which shows the trial.
    """
    from detcore.checkpoint import watch_transfers

    is_managed = settings.environment.trial_info is not None
    if is_managed or settings.distributed.rank or sys.stderr is None:
        return None
    return watch_transfers(sys.stderr)


def _delivery_wait_s(settings: Settings) -> float:
    """Return how long the end waits for observers; less where the process is about to be killed."""
    left_s = settings.preempt.seconds_left
    wait_s = settings.environment.delivery_wait_s
    return wait_s if left_s is None else min(wait_s, left_s / 2)


def _record_end(
    ending: Ending,
    observers: Observers,
    database: Database | None,
    info: TrialInfo,
    storage: StorageBackend,
) -> None:
    """Record how a script ended; runs after its metrics went to the database.

    The trials of a runner (no database) are recorded by the runner, which sees also those that are
    killed.

    Raises:
        StorageFullError: If the database has no room for it.
    """
    outcome = ending.outcome
    if database is not None:
        try:
            database.set_trial_state(info.trial_id, outcome.state, error=outcome.record)
            database.set_experiment_state(info.experiment_id, outcome.state, error=outcome.record)
        except StorageFullError as full:
            how = f"{outcome.label}: {outcome.error}" if outcome.error else outcome.label
            raise StorageFullError(
                f"no room in {database.url} to record how trial {info.trial_id} ended ({how}).\n"
                f"Its reports are kept in {info.trial_dir}, its checkpoints in {storage.url}.\n"
                "Free some space. The next detcore command takes the reports in, and the next "
                "script that calls core.init() settles the trial.",
                missing_bytes=full.missing_bytes,
            ) from full
    observers.finished(outcome)
    if database is not None:
        text = outcome.state.value.lower()
        if outcome.record:
            text += f": {outcome.record}"
        if outcome.state is ExperimentState.PAUSED:
            text += "; core.init(resume=True) resumes it from its latest checkpoint"
        _say(info, text)
