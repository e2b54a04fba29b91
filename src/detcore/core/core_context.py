"""Open and close the Core API."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import (
    CheckpointTimeoutError,
    ConfigError,
    ContextStateError,
    DistributedError,
)
from detcore.core.context_opening import ContextOpener, ContextSettings, Parts
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
    """Create the core context of this process's trial.

    Under ``detcore run``, the context belongs to the runner's trial. Otherwise, entering it records
    an experiment with one trial, whose state follows from how the block exits: COMPLETED, PAUSED or
    ERROR. Every worker enters the context; rank 0 (the chief) reports metrics.

    Example:
        >>> from detcore import core
        >>> with core.init(max_length={"batches": 100}) as context:
        ...     for operation in context.searcher.operations():
        ...         context.train.report_training_metrics(operation.length, {"loss": 0.25})
        ...         operation.report_completed(0.25)

    Args:
        distributed: This worker's rank and its peers. Default: a single worker.
        checkpoint_storage: An absolute path, an fsspec URL, or a dictionary as in an experiment
            file. Default: the configured storage, or ``checkpoints`` in ``DETCORE_HOME``.
        preempt_mode: The workers that call `PreemptContext.should_preempt`.
        tensorboard_mode: Whether reported metrics are written to event files.
        script: Experiment of a standalone script.
        max_length: Length of a standalone script: ``{"batches": N}``, records or epochs.
        resume: Whether a standalone script continues its last start if that did not finish. The
            n-th call continues the n-th run, which must have the same settings except for
            `max_length`. A complete run is restored, and ``info.is_complete`` is true.
        checkpoint_exit_timeout_s: Seconds that leaving the context waits for a checkpoint; >= 0.
            Default: the value in the experiment file, or 3600.
        grace_s: Seconds from SIGTERM to the kill; > 0. Default: see `PreemptContext.grace`.

    Raises:
        ConfigError: If an argument has a wrong type or value.
        DistributedError: If a launcher started several workers, and `distributed` is missing or
            contradicts the ranks that the launcher assigned.
    """
    environment = read_environment()
    script = set_length(script or ScriptExperiment(), max_length)
    settings = ContextSettings(
        environment=environment,
        distributed=_check_distributed(distributed, environment),
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
    """Create a context for a process that may have loaded its plugins already; see `init`."""
    return Context(dataclasses.replace(init(distributed=distributed)._settings, plugins=plugins))


class Context:
    """The Core API of one process: `train`, `checkpoint`, `searcher`, `preempt`, `distributed`.

    Created by `init`. Enter a context once, using ``with`` or `start` and `close`.

    Attributes:
        environment: Settings from environment variables; for framework plugins and the runner.
        distributed: This worker's rank and its peers.
        preempt: Reports requests to save and end early.
    """

    def __init__(self, settings: ContextSettings) -> None:
        self.environment: Environment = settings.environment
        self.distributed = settings.distributed
        self.preempt = PreemptContext(
            self.distributed, settings.preempt_mode, find_grace=self._find_grace_for
        )
        self._settings = settings
        self._stack = contextlib.ExitStack()
        self._opener: ContextOpener
        self._parts: Parts | None = None
        self._is_closed = False
        self._pid = os.getpid()

    def _find_grace_for(self, number: int) -> Grace | None:
        """Return the time to the kill after a signal; called when the signal arrives."""
        configured = self._settings.grace_s
        if configured is None and self.info is not None:
            configured = self.info.settings.preemption_grace_s
        return find_grace(number, self.environment, configured_s=configured, now=time.time())

    def _create_exit_deadline(self) -> Callable[[], float]:
        """Return a function that returns the seconds left to wait for a checkpoint at the end.

        If a signal announces a kill, even while waiting, the time is shortened and leaves a margin
        for writing the records.
        """
        timeout_s = self._settings.exit_timeout_s
        if timeout_s is None:
            assert self.info is not None  # the context was entered
            timeout_s = self.info.settings.checkpoint_exit_timeout_s
        end = time.monotonic() + timeout_s

        def get_remaining_s() -> float:
            remaining_s, grace = end - time.monotonic(), self.preempt.grace
            if self.preempt.seconds_left is not None and grace is not None:
                remaining_s = min(remaining_s, self.preempt.seconds_left - grace.margin_s)
            return max(0.0, remaining_s)

        return get_remaining_s

    @property
    def info(self) -> TrialInfo | None:
        """Identity and settings of the trial; None before the context is entered."""
        return self._parts.info if self._parts is not None else None

    @property
    def checkpoint(self) -> CheckpointContext:
        """Saves and restores checkpoints."""
        return self._open_parts().checkpoint

    @property
    def train(self) -> TrainContext:
        """Reports metrics and status."""
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
        """Control channel to the runner; for framework plugins."""
        return self._open_parts().channel

    def watch_state(self, state: Callable[[], object]) -> None:
        """Check each resume of a custom training loop. Call it once, after restoring the state.

        The chief's checkpoints then contain digests of each part of the state, unless they are
        sharded or uploaded. A resumed run compares the state that `state` returns now with the
        digests in its checkpoint. At reports of training metrics, some states are digested and
        compared with those of an earlier run, like the batches of `TrainContext.digest_batch`.

        Example:
            >>> from detcore import core
            >>> with core.init(resume=True) as context:
            ...     weights = [0.0, 0.0]  # or those of context.info.latest_checkpoint
            ...     context.watch_state(lambda: {"model": {"weights": weights}})

        Args:
            state: Returns arrays, numbers and strings in dictionaries and lists, such as
                ``{"model": model.state_dict(), "optimizer": optimizer.state_dict()}``.

        Raises:
            InexactResumeError: If a part differs from the saved part; the message names it.
            InvalidDataTypeError: If the state contains other objects.
        """
        from detcore.checkpoint.restore_audit import check_parts, parse_audit
        from detcore.core.state_parts import name_parts

        def name_state() -> dict[str, Any]:
            return name_parts(state())

        parts = self._open_parts()
        if not self.distributed.rank:
            check_parts(
                parse_audit(parts.checkpoint.restored_audit),
                name_state,
                reaction=parts.info.settings.inexact_resume,
            )
            parts.checkpoint.watched_state = name_state
        digests = parts.train.open_digests()
        if digests is not None:
            digests.watch_script(name_state)

    def start(self) -> Context:
        """Open records, storage and signal handling, as ``with`` does on entering.

        The context belongs to the calling process. In a forked child, leaving the block or calling
        `close` has no effect.

        Raises:
            ContextStateError: If it was started before.
            RunError: If the run to resume has different settings or is ambiguous, or if this trial
                of ``detcore run`` has opened a context before.
            DetcoreError: If the records or the storage cannot be opened.
            SystemExit: With code 130, if Ctrl-C interrupts the runner of this trial meanwhile.
        """
        if self._parts is not None or self._is_closed:
            raise ContextStateError(
                "this context was started before.\nCreate another context with core.init()."
            )
        self._opener = ContextOpener(self._settings, self.preempt, self._stack)
        self._pid = os.getpid()
        try:
            self._parts = self._opener.open_parts()
        except BaseException as error:
            self._is_closed = True
            self._stack.close()
            if isinstance(error, KeyboardInterrupt) and self.environment.trial_info is not None:
                # The runner reports the interruption; a traceback adds nothing.
                raise SystemExit(128 + signal.SIGINT) from None
            raise
        return self

    def close(self, error: BaseException | None = None) -> None:
        """Record the trial's outcome and release all resources, as ``with`` does on leaving.

        Waits for an asynchronous checkpoint. Closing again has no effect.

        Args:
            error: The exception that ended the trial, or None.

        Raises:
            CheckpointTimeoutError: If a checkpoint was not saved in time. Not raised if a kill has
                been announced, or if `error` is given.
            StorageError: If a checkpoint could not be saved and `error` is None.
        """
        if self._parts is None or self._is_closed:
            return
        self._is_closed = True
        if os.getpid() != self._pid:
            return  # a forked child: only the process that opened the context ends the trial
        parts = self._parts
        failure: BaseException | None = None
        try:
            self.finish_saving(error)
        except BaseException as raised:  # noqa: BLE001  (raised below, after it is recorded)
            error = failure = raised
            self.distributed.__exit__(type(error), error, error.__traceback__)
        outcome = derive_outcome(
            error,
            is_preempted=self.preempt.is_acknowledged,
            early_exit=parts.train.early_exit_reason,
        )
        self._opener.outcome = outcome
        if self.distributed.rank and outcome.fault and parts.info is not None:
            fault = WorkerFault(
                outcome.error or "", outcome.fault, parts.channel.has_sent("started")
            )
            fault.write(parts.info, self.distributed.rank)
        with self._stack:
            if parts.records is not None:
                self._stack.callback(parts.records.announce_end, outcome)
                if outcome.is_invalid_hp:
                    parts.train.report_early_exit(EarlyExitReason.INVALID_HP)
        if failure is not None:
            raise failure

    def wait_for_checkpoint(self) -> bool:
        """Wait for an asynchronous checkpoint before the trial reports its end; on the chief.

        Returns:
            Whether the checkpoint was committed. False only if a kill has been announced: the save
            is then cancelled, and the trial later resumes from the previous checkpoint.

        Raises:
            CheckpointTimeoutError: If it was not saved in time and no kill has been announced.
            StorageError: If it could not be saved.
        """
        try:
            self.checkpoint.wait(self._create_exit_deadline())
        except CheckpointTimeoutError as late:
            self._warn_or_raise(late)
            self.checkpoint.cancel_save(0.0)
            return False
        return True

    def finish_saving(self, error: BaseException | None) -> None:
        """Wait for an asynchronous checkpoint at the end of the trial, as `close` does first.

        Call it earlier if a resource that the save needs is closed before the context. Calling it
        again has no effect.

        Args:
            error: The exception that ended the trial, or None. The other workers are notified.

        Raises:
            CheckpointTimeoutError: As `close`.
            StorageError: As `close`.
        """
        if error is not None:
            # The other workers are notified before the save and the records finish.
            self.distributed.__exit__(type(error), error, error.__traceback__)
        # A second Ctrl-C ends the wait.
        timeout_s = 0.0 if isinstance(error, KeyboardInterrupt) else self._create_exit_deadline()
        try:
            # sys.exit(0) is not a failure, but a failed last checkpoint is.
            self.checkpoint.close(timeout_s, error if is_failure(error) else None)
        except CheckpointTimeoutError as late:
            self._warn_or_raise(late)

    def _warn_or_raise(self, late: CheckpointTimeoutError) -> None:
        """Log a warning if a kill has been announced; otherwise raise the error."""
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
                "this context is not open.\nUse it inside a block: with core.init() as context:"
            )
        return self._parts


def _choose_storage(
    storage: str | Mapping[str, object] | None, script: ScriptExperiment, environment: Environment
) -> str | Mapping[str, object] | None:
    """Return the storage passed to `init`, or for a standalone script that of `script`."""
    if storage is None and environment.trial_info is None:
        return script.config.get("checkpoint_storage")
    return storage


def _check_distributed(
    distributed: DistributedContext | None, environment: Environment
) -> DistributedContext:
    """Return this worker's distributed context, checked against the launcher's ranks."""
    if distributed is not None and not isinstance(distributed, DistributedContext):
        raise ConfigError(
            f"distributed is a {type(distributed).__name__}; expected a DistributedContext, such "
            "as DistributedContext.from_torch_distributed()"
        )
    if distributed is None and environment.num_workers > 1:
        raise DistributedError(
            f"core.init() was called without distributed=... in one of {environment.num_workers} "
            "workers of a job.\nEach worker would record a separate trial.\n"
            "Pass distributed=core.DistributedContext.from_env() (or from_horovod(hvd), "
            "from_torch_distributed())."
        )
    workers = distributed or DistributedContext()
    check_assigned(
        workers.rank, workers.size, workers.local_rank, workers.local_size, workers.cross_rank,
        workers.cross_size,
    )  # fmt: skip
    return workers


def _check_settings(settings: ContextSettings) -> None:
    """Raise a ConfigError if an argument of `init` has a wrong type or value."""
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
    minimum = "0 or more" if is_zero_fine else "more than 0"
    raise ConfigError(f"{name} is {value!r}; expected a number of seconds, {minimum}")


def _check_choice(name: str, value: object, choices: type) -> None:
    if not isinstance(value, choices):
        raise ConfigError(f"{name} is {value!r}; expected a member of {choices.__name__}")
