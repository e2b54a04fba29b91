"""Opening the parts of a context, each registered to be closed in reverse order."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detcore._log import open_log
from detcore.core._channel import Channel
from detcore.core._outcome import Outcome
from detcore.core._records import TrialRecords
from detcore.core._searcher import SearcherContext
from detcore.core._train import TrainContext
from detcore.errors import RunError, UnavailableError, in_one_line
from detcore.types import TrialInfo

if TYPE_CHECKING:
    from detcore.checkpoint import CheckpointContext, TransferObserver
    from detcore.core._modes import TensorboardMode
    from detcore.core._preempt import PreemptContext
    from detcore.core._script import ScriptExperiment
    from detcore.core._standalone import ScriptRunner
    from detcore.distributed import DistributedContext
    from detcore.environment import Environment
    from detcore.hooks import PluginManager
    from detcore.storage import StorageBackend

__all__ = ["Ending", "Parts", "Settings", "open_parts", "read_trial_info"]

_STDERR = 2  # where sys.stderr may have been replaced


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of a context."""

    environment: Environment
    distributed: DistributedContext
    preempt: PreemptContext
    checkpoint_storage: str | Mapping[str, object] | None
    tensorboard_mode: TensorboardMode
    script: ScriptExperiment
    resume: bool
    plugins: PluginManager | None = None  # if they are loaded already

    def delivery_wait_s(self) -> float:
        """Return how long the end waits for observers; less if the process is soon killed."""
        left_s, wait_s = self.preempt.seconds_left, self.environment.delivery_wait_s
        return wait_s if left_s is None else min(wait_s, left_s / 2)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of an open context; records only on the chief."""

    info: TrialInfo
    records: TrialRecords | None
    plugins: PluginManager
    channel: Channel
    checkpoint: CheckpointContext
    train: TrainContext
    searcher: SearcherContext


@dataclasses.dataclass(slots=True)
class Ending:
    """How the trial ends; set before the parts are closed."""

    outcome: Outcome = dataclasses.field(default_factory=Outcome.failed_to_start)


def open_parts(settings: Settings, stack: contextlib.ExitStack, ending: Ending) -> Parts:
    """Open the trial's log, its storage and signal handling.

    With several workers, the chief opens the log and broadcasts the trial to the others.

    Args:
        settings: The arguments of the context.
        stack: Closes everything that is opened here.
        ending: Read when the stack is closed.
    """
    distributed = settings.distributed
    stack.callback(distributed.close)
    if settings.environment.trial_info is not None:
        _write_stacks_at_signal(stack)
    if distributed.rank:
        return _open_worker(settings, stack)
    try:
        parts = _open_chief(settings, stack, ending)
    except Exception as error:
        distributed.__exit__(type(error), error, error.__traceback__)
        raise
    distributed.broadcast(parts.info)
    return parts


def _write_stacks_at_signal(stack: contextlib.ExitStack) -> None:
    """At SIGQUIT, write the stacks of all threads to standard error and continue.

    The runner sends it to workers that hang. Works in code that keeps the interpreter's lock, too.
    """
    faulthandler.register(signal.SIGQUIT, file=_STDERR, all_threads=True)
    stack.callback(faulthandler.unregister, signal.SIGQUIT)


def _open_chief(settings: Settings, stack: contextlib.ExitStack, ending: Ending) -> Parts:
    environment = settings.environment
    plugins = _open_plugins(settings)
    script: ScriptRunner | None = None
    managed = read_trial_info(environment) if environment.trial_info is not None else None
    if managed is None:
        from detcore.core._standalone import ScriptRunner

        script = ScriptRunner(environment, plugins, stack, wait_s=settings.delivery_wait_s)
    storage = _open_storage(managed, settings, plugins, stack)
    # A storage that cannot be written to is found out now, not after an hour of training.
    storage.probe()
    if script is not None:
        info = script.record(
            storage, settings.script, spec=settings.checkpoint_storage, resume=settings.resume
        )
        channel = Channel(None, answerer=script.answer)
    else:
        assert managed is not None  # one of the two
        info, channel = managed, Channel(environment.channel_fd)
    spool = open_log(info)
    stack.callback(spool.close)
    records = TrialRecords(info, spool, channel)
    stack.callback(_finish, records, script, ending)
    if script is not None:
        script.follow(spool.path)
    stack.callback(channel.close)
    checkpoint = _make_checkpoint(info, records, storage, settings)
    train = _make_train(info, settings, storage, records, checkpoint, stack)
    stack.callback(settings.preempt.close)
    settings.preempt.start()
    records.started(info.run_id)
    if script is None and settings.checkpoint_storage is not None:
        _settle_own_storage(records, storage)
    return Parts(
        info=info,
        records=records,
        plugins=plugins,
        channel=channel,
        checkpoint=checkpoint,
        train=train,
        searcher=SearcherContext(info, distributed=settings.distributed, channel=channel),
    )


def _finish(records: TrialRecords, script: ScriptRunner | None, ending: Ending) -> None:
    """Record how the run ended, once everything that it reported is recorded."""
    if script is not None:
        script.record_end(ending.outcome)
    records.finished(ending.outcome)
    if script is not None:
        script.announce_end(ending.outcome)


def _open_worker(settings: Settings, stack: contextlib.ExitStack) -> Parts:
    """Open the parts of a worker other than the chief: no records, and no runner that listens."""
    plugins = _open_plugins(settings)
    info: TrialInfo = settings.distributed.broadcast(None)  # type: ignore[assignment]  # the chief's
    storage = _open_storage(info, settings, plugins, stack)
    channel = Channel(None)
    checkpoint = _make_checkpoint(info, None, storage, settings)
    train = _make_train(info, settings, storage, None, checkpoint, stack)
    stack.callback(settings.preempt.close)
    settings.preempt.start()
    return Parts(
        info=info,
        records=None,
        plugins=plugins,
        channel=channel,
        checkpoint=checkpoint,
        train=train,
        searcher=SearcherContext(info, distributed=settings.distributed, channel=channel),
    )


def _open_plugins(settings: Settings) -> PluginManager:
    from detcore.hooks import PluginManager

    return settings.plugins or PluginManager(settings.environment)


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


def _settle_own_storage(records: TrialRecords, storage: StorageBackend) -> None:
    """Settle the checkpoints that a killed process left in a storage that its script names.

    The runner has done so already in the storage of the experiment file.
    """
    from detcore.checkpoint import settle_checkpoints

    try:
        settle_checkpoints(records, storage, records.unsettled_checkpoints(storage.url))
    except UnavailableError as away:
        import logging

        logging.getLogger("detcore").warning(
            "checkpoints that killed runs of the trial left in %s are settled when it starts "
            "again: %s", storage.url, in_one_line(away),
        )  # fmt: skip


def _make_train(
    info: TrialInfo,
    settings: Settings,
    storage: StorageBackend,
    records: TrialRecords | None,
    checkpoint: CheckpointContext,
    stack: contextlib.ExitStack,
) -> TrainContext:
    train = TrainContext(
        info,
        distributed=settings.distributed,
        records=records,
        storage=storage,
        tensorboard_mode=settings.tensorboard_mode,
        has_restored=lambda: checkpoint.has_restored,
    )
    stack.callback(train.close)
    return train


def _make_checkpoint(
    info: TrialInfo, records: TrialRecords | None, storage: StorageBackend, settings: Settings
) -> CheckpointContext:
    from detcore.checkpoint import CheckpointContext

    return CheckpointContext(
        storage=storage,
        distributed=settings.distributed,
        database=records,
        parent=info.latest_checkpoint,
        observer=_make_observer(settings),
    )


def _make_observer(settings: Settings) -> TransferObserver | None:
    """Return an observer that shows long transfers on the terminal of a script.

    The terminal of a runner's worker belongs to the runner, which shows the trial.
    """
    is_managed = settings.environment.trial_info is not None
    if is_managed or settings.distributed.rank or sys.stderr is None:
        return None
    from detcore.checkpoint import watch_transfers

    return watch_transfers(sys.stderr)


def read_trial_info(environment: Environment) -> TrialInfo:
    """Read the file in which the runner says which trial this process runs.

    Args:
        environment: Its `trial_info` names the file.

    Raises:
        RunError: If this process was not started by a runner, or the file cannot be used.
    """
    path = environment.trial_info
    if path is None:
        raise RunError(
            "DETCORE_TRIAL_INFO is not set: this process was not started for a trial.\n"
            "The runner sets it in the workers that it starts.\n"
            "Start an experiment with: detcore run CONFIG.yaml"
        )
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = {field.name for field in dataclasses.fields(TrialInfo)}
        unknown = sorted(set(fields) - known)
        if unknown:
            raise RunError(
                f"{path} has fields this release does not know: {', '.join(unknown)}.\n"
                "The runner and the worker must be of the same release of detcore."
            )
        return TrialInfo(**fields)
    except OSError as error:
        raise RunError(f"the trial's file {path} cannot be read: {error}") from error
    except (ValueError, TypeError) as error:
        raise RunError(f"{path} does not describe a trial: {error}") from error
