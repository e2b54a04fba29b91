"""Open the parts of a core context; each part is closed in reverse order."""

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


_STDERR = 2  # sys.stderr may have been replaced by an object without a descriptor


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
    plugins: PluginManager | None = None  # set if the process has loaded them already


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts of an open context; only the chief has records."""

    info: TrialInfo
    records: TrialRecords | None
    plugins: PluginManager
    channel: Channel
    checkpoint: CheckpointContext
    train: TrainContext
    searcher: SearcherContext


class ContextOpener:
    """Opens a trial's event log, storage and signal handling.

    With several workers, the chief opens the log and broadcasts the trial to the other workers. A
    standalone script also starts its runner, in a thread of the same process.

    Args:
        settings: The arguments of the context.
        preempt: Starts to handle signals here.
        stack: Closes everything that is opened here.

    Attributes:
        outcome: Outcome of the trial; set it before closing the stack.
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

    def open_parts(self) -> Parts:
        """Open and return all parts."""
        from detcore.plugins import PluginManager

        self._stack.callback(self._distributed.close)
        # Closed late: a signal must not end this process while the trial's end is being recorded.
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
        """Make SIGQUIT write the stacks of all threads to standard error.

        The runner sends SIGQUIT to workers that hang. The handler also works while a thread holds
        the interpreter lock.
        """
        faulthandler.register(signal.SIGQUIT, file=_STDERR, all_threads=True)
        self._stack.callback(faulthandler.unregister, signal.SIGQUIT)

    def _open_chief(self) -> Parts:
        info, storage, channel = self._open_trial()
        log = open_log(info)
        self._stack.callback(log.close)
        os.register_at_fork(after_in_child=log.abandon)
        if not log.is_empty:
            raise RunError(
                f"trial {info.trial_id} of detcore run has opened a context before.\n"
                "A trial has one length and one latest checkpoint, so reports of a second context "
                "would be mixed with those of the first.\n"
                "Open one context per trial. To train several runs, make each a separate trial, "
                "for example with a hyperparameter fold: {type: categorical, vals: [0, 1, 2]} and "
                "searcher.name: grid. Or start the script without detcore run."
            )
        records = TrialRecords(info, log, channel)
        self._stack.callback(self._record_end, records)
        self._stack.callback(channel.close)
        parts = self._create_parts(info, storage, channel, records)
        records.append_event(TrialStarted(run_id=info.run_id))
        self._recover_script_storage(records, storage)
        return parts

    def _open_trial(self) -> tuple[TrialInfo, StorageBackend, Channel]:
        """Return the trial, its storage and the channel to its runner."""
        if self._environment.trial_info is not None:
            info = read_trial_info(self._environment)
            storage = self._open_probed_storage(info.settings.checkpoint_storage)
            return info, storage, Channel(self._environment.channel_fd)
        # Only a standalone script imports the runner: it runs in this process.
        from detcore.run import ScriptRun

        run = ScriptRun(
            self._settings,
            self._preempt,
            plugins=self._plugins,
            open_storage=lambda: self._open_probed_storage(None),
        )
        self._stack.callback(lambda: run.record_end(self.outcome))
        return run.info, run.storage, Channel(run.channel_fd)

    def _open_probed_storage(self, configured: str | Mapping[str, object] | None) -> StorageBackend:
        """Open a storage and check that it is writable, before any training."""
        storage = self._open_storage(configured)
        storage.probe()
        return storage

    def _record_end(self, records: TrialRecords) -> None:
        """Record the outcome of the run, after all of its reports."""
        records.record_end(self.outcome)

    def _recover_script_storage(self, records: TrialRecords, storage: StorageBackend) -> None:
        """Recover unfinished checkpoints in a storage that the script passes to `init`.

        The runner has already recovered those in the experiment file's storage, and in the storage
        of a standalone script.
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
                "unfinished checkpoints of killed runs in %s are recovered when the trial starts "
                "again: %s", storage.url, in_one_line(away),
            )  # fmt: skip

    def _open_worker(self) -> Parts:
        """Open the parts of a worker that is not the chief, without records and runner."""
        info: TrialInfo = self._distributed.broadcast(None)  # type: ignore[assignment]  # sent by the chief
        storage = self._open_storage(info.settings.checkpoint_storage)
        return self._create_parts(info, storage, Channel(None), None)

    def _create_parts(
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
        """Open the storage that the script passes to `init`, or the configured storage."""
        from detcore.storage import open_storage

        spec = self._settings.checkpoint_storage
        storage = open_storage(
            configured if spec is None else spec, home=self._environment.home, plugins=self._plugins
        )
        self._stack.callback(storage.close)
        return storage

    def _make_observer(self) -> TransferObserver | None:
        """Return an observer that shows long transfers on a standalone script's terminal.

        Under ``detcore run`` the terminal belongs to the runner, which displays the trial.
        """
        is_managed = self._environment.trial_info is not None
        if is_managed or self._distributed.rank or sys.stderr is None:
            return None
        from detcore.storage import watch_transfers

        return watch_transfers(sys.stderr)


def read_trial_info(environment: Environment) -> TrialInfo:
    """Read the file in which the runner describes the trial of this process.

    Args:
        environment: Its `trial_info` is the path of the file.

    Raises:
        RunError: If this process was not started by a runner, or the file cannot be used.
    """
    path = environment.trial_info
    if path is None:
        raise RunError(
            "DETCORE_TRIAL_INFO is not set: this process was not started for a trial.\n"
            "The runner sets it in the workers that it starts.\n"
            "Start an experiment with:  detcore run CONFIG.yaml"
        )
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        field_names = {field.name for field in dataclasses.fields(TrialInfo)}
        unknown_names = sorted(set(fields) - field_names)
        if unknown_names:
            raise RunError(
                f"{path} has fields that this release does not know: {', '.join(unknown_names)}.\n"
                "The runner and the worker must use the same detcore release.\n"
                "Install the same release on both machines."
            )
        return TrialInfo(**fields)
    except OSError as error:
        raise RunError(f"the trial file {path} cannot be read: {error}") from error
    except (ValueError, TypeError) as error:
        raise RunError(f"{path} does not describe a trial: {error}") from error
