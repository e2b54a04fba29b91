"""Opening and closing the Core API."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from detcore.contract.errors import (
    CheckpointTimeoutError,
    ConfigError,
    ContextStateError,
    DistributedError,
)
from detcore.core.context_opening import ContextSettings, Opening, Parts
from detcore.core.context_options import (
    EarlyExitReason,
    PreemptMode,
    ScriptExperiment,
    TensorboardMode,
)
from detcore.core.preempt_context import Grace, PreemptContext, find_grace
from detcore.core.searcher_context import set_length
from detcore.core.trial_outcome import WorkerFault, derive_outcome, is_failure
from detcore.distributed import DistributedContext, check_assigned
from detcore.environment import Environment, read_environment

if TYPE_CHECKING:
    from detcore.checkpoint import CheckpointContext
    from detcore.contract.values import Length, TrialInfo
    from detcore.core.channel import Channel
    from detcore.core.searcher_context import SearcherContext
    from detcore.core.train_context import TrainContext
    from detcore.plugins import PluginManager


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | Mapping[str, object] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
    script: ScriptExperiment | None = None,
    max_length: int | Mapping[str, int] | Length | None = None,
    resume: bool = False,
    checkpoint_exit_timeout_s: float | None = None,
    grace_s: float | None = None,
) -> Context:
    """Make the context of this process's trial; enter it with ``with``.

    In a process that ``detcore run`` started, it belongs to that trial: the runner decides, and
    `script`, `max_length` and `resume` are ignored. In any other, entering it records an experiment
    with one trial, named after the script, which ends as the with-block does: COMPLETED, PAUSED
    when it was asked to stop and agreed, or ERROR.

    Of several workers all enter it; the first one (rank 0, the chief) keeps the records, reports
    metrics and saves checkpoints that are not sharded.

    Args:
        distributed: This worker's place among several; default: one worker.
        checkpoint_storage: An absolute path, a URL that fsspec knows, or a dictionary with
            ``type`` as in an experiment file. Default: that of the experiment file, or of `script`,
            else ``checkpoints`` in ``DETCORE_HOME``.
        preempt_mode: The workers that ask whether to stop early.
        tensorboard_mode: Whether reported metrics are written to event files.
        script: Configuration, hyperparameters and seed to record for a script by itself.
        max_length: How far a script by itself trains, such as ``{"batches": 1000}`` (or records,
            or epochs); the length of its one operation.
        resume: Whether a script by itself continues its last start if that did not finish. The n-th
            call then continues the n-th run, which must have the same settings, but for
            `max_length`. A run that was complete is restored, and ``info.is_complete`` is true.
        checkpoint_exit_timeout_s: Seconds that leaving the context waits for a checkpoint that is
            being saved behind the training; >= 0. Default: the experiment file's, else 3600.
        grace_s: Seconds between SIGTERM (or SIGUSR1) and the kill; > 0. Default: see
            `PreemptContext.grace`.

    Raises:
        ConfigError: If an argument is of the wrong kind.
        DistributedError: If a launcher started several workers, and `distributed` is not given or
            has other numbers than the launcher assigned.
    """
    environment = read_environment()
    script = set_length(script or ScriptExperiment(), max_length)
    settings = ContextSettings(
        environment=environment,
        distributed=_find_place(distributed, environment),
        checkpoint_storage=_choose_storage(checkpoint_storage, script, environment),
        preempt_mode=preempt_mode,
        tensorboard_mode=tensorboard_mode,
        script=script,
        resume=resume,
        exit_timeout_s=checkpoint_exit_timeout_s,
        grace_s=grace_s,
    )
    _check_settings(settings)
    return Context(settings)


def init_with_plugins(distributed: DistributedContext, plugins: PluginManager | None) -> Context:
    """Make the context of a process that may have loaded its plugins already; see `init`."""
    return Context(dataclasses.replace(init(distributed=distributed)._settings, plugins=plugins))


class Context:
    """The Core API of one process: `train`, `checkpoint`, `searcher`, `preempt`, `distributed`.

    Made by `init`. A context is entered once: with ``with``, or by `start` and `close`.

    Attributes:
        environment: The settings this process got from environment variables; for framework
            plugins and the runner.
        distributed: This worker's place among the trial's workers.
        preempt: Whether to save and end early.
    """

    def __init__(self, settings: ContextSettings) -> None:
        self.environment: Environment = settings.environment
        self.distributed = settings.distributed
        self.preempt = PreemptContext(
            self.distributed, settings.preempt_mode, find_grace=self._grace_of
        )
        self._settings = settings
        self._stack = contextlib.ExitStack()
        self._opening: Opening
        self._parts: Parts | None = None
        self._is_closed = False
        self._pid = os.getpid()

    def _grace_of(self, number: int) -> Grace | None:
        """Return how long there is after a signal; called when it comes."""
        configured = self._settings.grace_s
        if configured is None and self.info is not None:
            configured = self.info.settings.preemption_grace_s
        return find_grace(number, self.environment, configured_s=configured, now=time.time())

    def _exit_deadline(self) -> Callable[[], float]:
        """Return a function for how long the end still waits for a checkpoint, in seconds.

        It returns less than configured when the process is about to be killed, which may become
        known meanwhile: a margin is left for the records.
        """
        wanted = self._settings.exit_timeout_s
        if wanted is None:
            assert self.info is not None  # the context was entered
            wanted = self.info.settings.checkpoint_exit_timeout_s
        end = time.monotonic() + wanted

        def left_s() -> float:
            left_s, grace = end - time.monotonic(), self.preempt.grace
            if self.preempt.seconds_left is not None and grace is not None:
                left_s = min(left_s, self.preempt.seconds_left - grace.margin_s)
            return max(0.0, left_s)

        return left_s

    @property
    def info(self) -> TrialInfo | None:
        """The trial; None before the context is entered."""
        return self._parts.info if self._parts is not None else None

    @property
    def checkpoint(self) -> CheckpointContext:
        """Saving and restoring checkpoints."""
        return self._open_parts().checkpoint

    @property
    def train(self) -> TrainContext:
        """Reporting metrics and status."""
        return self._open_parts().train

    @property
    def searcher(self) -> SearcherContext:
        """The operations that the search method requests of this trial."""
        return self._open_parts().searcher

    @property
    def plugins(self) -> PluginManager:
        """The plugins of this process; for framework plugins and the runner."""
        return self._open_parts().plugins

    @property
    def channel(self) -> Channel:
        """The way to the runner; for framework plugins."""
        return self._open_parts().channel

    def start(self) -> Context:
        """Open records, storage and signal handling, as ``with`` does on entering.

        The context belongs to the calling process. A forked child that leaves the block, or calls
        `close`, changes nothing.

        Raises:
            ContextStateError: If it was started before.
            RunError: If the run to continue has other settings, or cannot be determined; or if this
                trial of ``detcore run`` has opened a context before.
            DetcoreError: If the records or the storage cannot be opened.
            SystemExit: With code 130, if the runner of this trial is interrupted meanwhile.
        """
        if self._parts is not None or self._is_closed:
            raise ContextStateError(
                "this context was started before.\nMake a new one with core.init()."
            )
        self._opening = Opening(self._settings, self.preempt, self._stack)
        self._pid = os.getpid()
        try:
            self._parts = self._opening.open()
        except BaseException as error:
            self._is_closed = True
            self._stack.close()
            if isinstance(error, KeyboardInterrupt) and self.environment.trial_info is not None:
                # The runner says that the trial is interrupted; a traceback of this adds nothing.
                raise SystemExit(128 + signal.SIGINT) from None
            raise
        return self

    def close(self, error: BaseException | None = None) -> None:
        """Record how the trial ended and release everything, as ``with`` does on leaving.

        Waits for a checkpoint that is being saved behind the training. Closing twice is fine.

        Args:
            error: The exception that ended the trial, or None.

        Raises:
            CheckpointTimeoutError: If a checkpoint was not saved in time; not where the process
                is about to be killed, or another error ends it.
            StorageError: If a checkpoint could not be saved, and no other error ends the trial.
        """
        if self._parts is None or self._is_closed:
            return
        self._is_closed = True
        if os.getpid() != self._pid:
            return  # a forked child; the process that opened the context ends the trial
        parts = self._parts
        failure: BaseException | None = None
        try:
            self.finish_saving(error)
        except BaseException as raised:  # noqa: BLE001  (raised below, once it is recorded)
            error = failure = raised
            self.distributed.__exit__(type(error), error, error.__traceback__)
        outcome = derive_outcome(
            error,
            is_preempted=self.preempt.is_acknowledged,
            early_exit=parts.train.early_exit_reason,
        )
        self._opening.outcome = outcome
        if self.distributed.rank and outcome.fault and parts.info is not None:
            fault = WorkerFault(
                outcome.error or "", outcome.fault, parts.channel.has_sent("started")
            )
            fault.write(parts.info, self.distributed.rank)
        with self._stack:
            if parts.records is not None:
                self._stack.callback(parts.records.ending, outcome)
                if outcome.is_invalid_hp:
                    parts.train.report_early_exit(EarlyExitReason.INVALID_HP)
        if failure is not None:
            raise failure

    def wait_for_checkpoint(self) -> bool:
        """Wait for the checkpoint under way, before the trial says that it ends; on the chief.

        Returns:
            Whether all that was saved counts. False only where the process is about to be killed:
            the save is given up then, and the trial resumes later from the one before.

        Raises:
            CheckpointTimeoutError: If it was not saved in time, and no kill is near.
            StorageError: If it could not be saved.
        """
        try:
            self.checkpoint.wait(self._exit_deadline())
        except CheckpointTimeoutError as late:
            self._excuse(late)
            self.checkpoint.cancel_save(0.0)
            return False
        return True

    def finish_saving(self, error: BaseException | None) -> None:
        """Wait for the checkpoint under way at the end of the trial, as `close` does first.

        Call it earlier if something that the save needs is closed before the context. Calling it
        again is fine.

        Args:
            error: The exception that ended the trial, or None. The other workers are notified.

        Raises:
            CheckpointTimeoutError: As `close`.
            StorageError: As `close`.
        """
        if error is not None:
            # The others are notified now, not after the rest is saved and recorded.
            self.distributed.__exit__(type(error), error, error.__traceback__)
        # A user who interrupts twice does not want to wait.
        timeout_s = 0.0 if isinstance(error, KeyboardInterrupt) else self._exit_deadline()
        try:
            # A script that ends with sys.exit(0) has not failed, unless its last checkpoint has.
            self.checkpoint.close(timeout_s, error if is_failure(error) else None)
        except CheckpointTimeoutError as late:
            self._excuse(late)

    def _excuse(self, late: CheckpointTimeoutError) -> None:
        """Warn if the kill would come first, so that the trial resumes later; else raise."""
        if self.preempt.seconds_left is None:
            raise late
        import logging

        logging.getLogger("detcore").warning("%s: %s", self.preempt.grace, late)

    def __enter__(self) -> Context:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(exc)

    def _open_parts(self) -> Parts:
        if self._parts is None:
            raise ContextStateError(
                "this context is not open.\nUse it inside the block: with core.init() as context:"
            )
        return self._parts


def _choose_storage(
    given: str | Mapping[str, object] | None, script: ScriptExperiment, environment: Environment
) -> str | Mapping[str, object] | None:
    """Return the storage of a call of `init`; a script by itself may name it in its experiment."""
    if given is None and environment.trial_info is None:
        return script.config.get("checkpoint_storage")
    return given


def _find_place(
    distributed: DistributedContext | None, environment: Environment
) -> DistributedContext:
    """Return this worker's place among several, once it agrees with what the launcher assigned."""
    if distributed is not None and not isinstance(distributed, DistributedContext):
        raise ConfigError(
            f"distributed is a {type(distributed).__name__}; expected a DistributedContext, such "
            "as DistributedContext.from_torch_distributed()"
        )
    if distributed is None and environment.num_workers > 1:
        # Each worker would record a separate trial, and save its checkpoints separately.
        raise DistributedError(
            f"core.init() was called without distributed=... in one of {environment.num_workers} "
            "workers of a job.\nThey have to know of each other, or each one would be a trial of "
            "its own.\nPass distributed=core.DistributedContext.from_env() (or from_horovod(hvd), "
            "from_torch_distributed())."
        )
    place = distributed or DistributedContext()
    check_assigned(
        place.rank, place.size, place.local_rank, place.local_size, place.cross_rank,
        place.cross_size,
    )  # fmt: skip
    return place


def _check_settings(settings: ContextSettings) -> None:
    """Raise a ConfigError if an argument of `init` is of the wrong kind."""
    _check_choice("preempt_mode", settings.preempt_mode, PreemptMode)
    _check_choice("tensorboard_mode", settings.tensorboard_mode, TensorboardMode)
    _check_seconds("checkpoint_exit_timeout_s", settings.exit_timeout_s, is_zero_fine=True)
    _check_seconds("grace_s", settings.grace_s, is_zero_fine=False)
    if not isinstance(settings.resume, bool):
        raise ConfigError(f"resume is {settings.resume!r}; expected True or False")


def _check_seconds(name: str, value: object, *, is_zero_fine: bool) -> None:
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    seconds = float(value) if is_number else math.nan  # type: ignore[arg-type]  # it is one
    if math.isfinite(seconds) and (seconds > 0 or (is_zero_fine and seconds == 0)):
        return
    least = "0 or more" if is_zero_fine else "more than 0"
    raise ConfigError(f"{name} is {value!r}; expected a number of seconds, {least}")


def _check_choice(name: str, value: object, choices: type) -> None:
    if not isinstance(value, choices):
        raise ConfigError(f"{name} is {value!r}; expected one of {choices.__name__}'s values")
