"""Opening the parts of a context, each registered to be closed in reverse order."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import RunError, UnavailableError, in_one_line
from detcore.contract.values import TrialInfo
from detcore.core.channel import Channel
from detcore.core.searcher_context import SearcherContext
from detcore.core.train_context import TrainContext
from detcore.core.trial_outcome import ScriptOutcome
from detcore.core.trial_records import TrialRecords
from detcore.log.events import TrialStarted
from detcore.log.writing import open_log

if TYPE_CHECKING:
    from detcore.checkpoint import CheckpointContext
    from detcore.core.context_options import PreemptMode, ScriptExperiment, TensorboardMode
    from detcore.core.preempt_context import PreemptContext
    from detcore.distributed import DistributedContext
    from detcore.environment import Environment
    from detcore.plugins import PluginManager
    from detcore.storage import StorageBackend, TransferObserver


_STDERR = 2  # where sys.stderr may have been replaced


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """The arguments of a context; see `detcore.core.init`."""

    environment: Environment
    distributed: DistributedContext
    checkpoint_storage: str | Mapping[str, object] | None
    preempt_mode: PreemptMode
    tensorboard_mode: TensorboardMode
    script: ScriptExperiment
    resume: bool
    exit_timeout_s: float | None
    grace_s: float | None
    plugins: PluginManager | None = None  # if they are loaded already


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


class Opening:
    """Opens the log of a trial, its storage and signal handling.

    A script by itself has its runner in its own process.

    With several workers, the chief opens the log and broadcasts the trial to the others.

    Args:
        settings: The arguments of the context.
        preempt: Starts to listen.
        stack: Closes everything that is opened here.

    Attributes:
        outcome: How the trial ends; set before the stack is closed.
    """

    def __init__(
        self, settings: ContextSettings, preempt: PreemptContext, stack: contextlib.ExitStack
    ) -> None:
        self.outcome = ScriptOutcome.failed_to_start()
        self._settings = settings
        self._environment = settings.environment
        self._distributed = settings.distributed
        self._preempt = preempt
        self._stack = stack

    def open(self) -> Parts:
        """Open everything."""
        from detcore.plugins import PluginManager

        self._stack.callback(self._distributed.close)
        # Last: a signal must not end this process while the end of the trial is recorded.
        self._stack.callback(self._preempt.close)
        if self._environment.trial_info is not None:
            self._write_stacks_at_signal()
        try:
            self._plugins = self._settings.plugins or PluginManager(self._environment)
            if self._distributed.rank:
                return self._open_worker()
            parts = self._open_chief()
        except Exception as error:
            if not self._distributed.rank:
                self._distributed.__exit__(type(error), error, error.__traceback__)
            raise
        self._distributed.broadcast(parts.info)
        return parts

    def _write_stacks_at_signal(self) -> None:
        """At SIGQUIT, write the stacks of all threads to standard error and continue.

        The runner sends it to workers that hang. Works in code that keeps the interpreter's lock,
        too.
        """
        faulthandler.register(signal.SIGQUIT, file=_STDERR, all_threads=True)
        self._stack.callback(faulthandler.unregister, signal.SIGQUIT)

    def _open_chief(self) -> Parts:
        info, storage, channel = self._identify()
        log = open_log(info)
        self._stack.callback(log.close)
        os.register_at_fork(after_in_child=log.abandon)
        if not log.is_empty:
            raise RunError(
                f"trial {info.trial_id} of detcore run has opened a context before.\n"
                "A trial is one run with one length and one latest checkpoint, so a second run in "
                "it would be mixed up with the first one.\n"
                "Open one context in each trial: make each run a trial of its own, for example "
                "with a hyperparameter fold: {type: categorical, vals: [0, 1, 2]} and "
                "searcher.name: grid. Or start the script by itself, without detcore run."
            )
        records = TrialRecords(info, log, channel)
        self._stack.callback(self._finish, records)
        self._stack.callback(channel.close)
        parts = self._assemble(info, storage, channel, records)
        records.append(TrialStarted(run_id=info.run_id))
        self._settle_own_storage(records, storage)
        return parts

    def _identify(self) -> tuple[TrialInfo, StorageBackend, Channel]:
        """Return the trial, its storage and the channel to its runner."""
        if self._environment.trial_info is not None:
            info = read_trial_info(self._environment)
            storage = self._open_probed(info.settings.checkpoint_storage)
            return info, storage, Channel(self._environment.channel_fd)
        # The one place where a worker loads the runner: it runs in this process.
        from detcore.run import ScriptRun

        run = ScriptRun(
            self._settings,
            self._preempt,
            plugins=self._plugins,
            open_storage=lambda: self._open_probed(None),
        )
        self._stack.callback(lambda: run.end(self.outcome))
        return run.info, run.storage, Channel(run.channel_fd)

    def _open_probed(self, configured: str | Mapping[str, object] | None) -> StorageBackend:
        """Open a storage; one that cannot be written to is found now, not after an hour."""
        storage = self._open_storage(configured)
        storage.probe()
        return storage

    def _finish(self, records: TrialRecords) -> None:
        """Record how the run ended, once everything that it reported is recorded."""
        records.finished(self.outcome)

    def _settle_own_storage(self, records: TrialRecords, storage: StorageBackend) -> None:
        """Settle the checkpoints that a killed process left in a storage that its script names.

        The runner has done so already in the storage of the experiment file, and in that of a
        script by itself.
        """
        if self._settings.checkpoint_storage is None or self._environment.trial_info is None:
            return
        from detcore.checkpoint import reconcile_checkpoints

        try:
            reconcile_checkpoints(
                records, storage, records.list_unfinished_checkpoints(storage.url)
            )
        except UnavailableError as away:
            import logging

            logging.getLogger("detcore").warning(
                "checkpoints that killed runs of the trial left in %s are settled when it starts "
                "again: %s", storage.url, in_one_line(away),
            )  # fmt: skip

    def _open_worker(self) -> Parts:
        """Open the parts of a worker other than the chief: no records, no runner that listens."""
        info: TrialInfo = self._distributed.broadcast(None)  # type: ignore[assignment]  # the chief's
        storage = self._open_storage(info.settings.checkpoint_storage)
        return self._assemble(info, storage, Channel(None), None)

    def _assemble(
        self,
        info: TrialInfo,
        storage: StorageBackend,
        channel: Channel,
        records: TrialRecords | None,
    ) -> Parts:
        from detcore.checkpoint import CheckpointContext

        checkpoint = CheckpointContext(
            storage=storage,
            distributed=self._distributed,
            database=records,
            parent=info.latest_checkpoint,
            observer=self._make_observer(),
            on_damage=lambda uuid, error: channel.send("damaged", uuid=uuid, error=error),
        )
        train = TrainContext(
            info,
            distributed=self._distributed,
            records=records,
            storage=storage,
            tensorboard_mode=self._settings.tensorboard_mode,
            has_restored=lambda: checkpoint.has_restored,
        )
        self._stack.callback(train.close)
        self._preempt.start()
        return Parts(
            info=info,
            records=records,
            plugins=self._plugins,
            channel=channel,
            checkpoint=checkpoint,
            train=train,
            searcher=SearcherContext(info, distributed=self._distributed, channel=channel),
        )

    def _open_storage(self, configured: str | Mapping[str, object] | None) -> StorageBackend:
        """Open the storage that the script names, else the configured one."""
        from detcore.storage import open_storage

        spec = self._settings.checkpoint_storage
        storage = open_storage(
            configured if spec is None else spec, home=self._environment.home, plugins=self._plugins
        )
        self._stack.callback(storage.close)
        return storage

    def _make_observer(self) -> TransferObserver | None:
        """Return an observer that shows long transfers on the terminal of a script.

        The terminal of a runner's worker belongs to the runner, which shows the trial.
        """
        is_managed = self._environment.trial_info is not None
        if is_managed or self._distributed.rank or sys.stderr is None:
            return None
        from detcore.storage import watch_transfers

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
