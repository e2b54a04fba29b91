"""Opening and closing the Core API."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from detcore.core._modes import EarlyExitReason, PreemptMode, TensorboardMode
from detcore.core._opening import Ending, Parts, Settings, open_parts
from detcore.core._outcome import outcome_of
from detcore.core._preempt import PreemptContext
from detcore.core._script import ScriptExperiment
from detcore.distributed import DistributedContext
from detcore.environment import Environment, read_environment
from detcore.errors import ConfigError, ContextStateError, DistributedError

if TYPE_CHECKING:
    from detcore.checkpoint import CheckpointContext
    from detcore.core._events import EventPipe
    from detcore.core._searcher import SearcherContext
    from detcore.core._train import TrainContext
    from detcore.database import Database
    from detcore.hooks import PluginManager
    from detcore.types import TrialInfo

__all__ = ["Context", "init"]


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | Mapping[str, object] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
    script: ScriptExperiment | None = None,
) -> Context:
    """Make the context of this process's trial; enter it with ``with``.

    In a process that ``detcore run`` started, it belongs to that trial. In any other, entering it
    records an experiment with one trial, named after the script, which ends as the with-block
    does: COMPLETED, PAUSED when it was asked to stop and agreed, or ERROR.

    Of several workers all enter it; the first one (rank 0, the chief) keeps the records, reports
    metrics and saves checkpoints that are not sharded.

    Args:
        distributed: This worker's place among several; default: one worker.
        checkpoint_storage: An absolute path, a URL that fsspec knows, or a dictionary with
            ``type`` as in an experiment file. Default: what the experiment file says, else
            ``checkpoints`` in ``DETCORE_HOME``.
        preempt_mode: Who asks whether to stop early.
        tensorboard_mode: Whether reported metrics are written to event files.
        script: What is recorded of a script by itself: configuration, hyperparameters, seed. Of no
            meaning in a process that ``detcore run`` started.

    Raises:
        ConfigError: If an argument is of the wrong kind.
        DistributedError: If `detcore` started several workers and `distributed` is not given.
    """
    if distributed is not None and not isinstance(distributed, DistributedContext):
        raise ConfigError(
            f"distributed is a {type(distributed).__name__}; expected a DistributedContext, such "
            "as DistributedContext.from_torch_distributed()"
        )
    environment = read_environment()
    if distributed is None and environment.num_workers > 1:
        # Each worker would record a trial of its own, and save checkpoints apart from the others'.
        raise DistributedError(
            f"core.init() was called without distributed=... in one of {environment.num_workers} "
            "workers of a job.\nThey have to know of each other, or each one would be a trial of "
            "its own.\nPass distributed=core.DistributedContext.from_env() (or from_horovod(hvd), "
            "from_torch_distributed())."
        )
    _check_choice("preempt_mode", preempt_mode, PreemptMode)
    _check_choice("tensorboard_mode", tensorboard_mode, TensorboardMode)
    return Context(
        environment=environment,
        distributed=distributed or DistributedContext(),
        checkpoint_storage=checkpoint_storage,
        preempt_mode=preempt_mode,
        tensorboard_mode=tensorboard_mode,
        script=script or ScriptExperiment(),
    )


class Context:
    """The Core API of one process: `train`, `checkpoint`, `searcher`, `preempt`, `distributed`.

    Made by `init`. A context is entered once: with ``with``, or by `start` and `close`.

    Attributes:
        environment: The settings this process got from environment variables; for framework
            plugins and the runner.
        distributed: This worker's place among the trial's workers.
        preempt: Whether to save and end early.
    """

    def __init__(
        self,
        *,
        environment: Environment,
        distributed: DistributedContext,
        checkpoint_storage: str | Mapping[str, object] | None,
        preempt_mode: PreemptMode,
        tensorboard_mode: TensorboardMode,
        script: ScriptExperiment,
    ) -> None:
        self.environment = environment
        self.distributed = distributed
        self.preempt = PreemptContext(distributed, preempt_mode)
        self._settings = Settings(
            environment=environment,
            distributed=distributed,
            preempt=self.preempt,
            checkpoint_storage=checkpoint_storage,
            tensorboard_mode=tensorboard_mode,
            script=script,
        )
        self._parts: Parts | None = None
        self._stack = contextlib.ExitStack()
        self._ending = Ending()
        self._is_closed = False

    @property
    def info(self) -> TrialInfo | None:
        """Which trial this is; None before the context is entered."""
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
        """What the search method wants of this trial."""
        return self._open_parts().searcher

    @property
    def database(self) -> Database:
        """The record store; for framework plugins and the runner.

        Raises:
            ContextStateError: On workers other than the chief, which have none.
        """
        database = self._open_parts().database
        if database is None:
            raise ContextStateError(
                f"rank {self.distributed.rank} asked for the records, which rank 0 keeps.\n"
                "Use them on rank 0, and broadcast what the others need."
            )
        return database

    @property
    def plugins(self) -> PluginManager:
        """The plugins of this process; for framework plugins and the runner."""
        return self._open_parts().plugins

    @property
    def events(self) -> EventPipe:
        """The way to tell the runner something; for framework plugins and the runner."""
        return self._open_parts().events

    def start(self) -> Context:
        """Open records, storage and signal handling; what ``with`` does on entering.

        Raises:
            ContextStateError: If it was started before.
            DetcoreError: If the records or the storage cannot be opened.
        """
        if self._parts is not None or self._is_closed:
            raise ContextStateError(
                "this context was started before.\nMake a new one with core.init()."
            )
        try:
            self._parts = open_parts(self._settings, self._stack, self._ending)
        except BaseException:
            self._is_closed = True
            self._stack.close()
            raise
        self._ending.was_open = True
        return self

    def close(self, error: BaseException | None = None) -> None:
        """Record how the trial ended and release everything; what ``with`` does on leaving.

        Closing twice is fine.

        Args:
            error: The exception that ended the trial, or None.
        """
        if self._parts is None or self._is_closed:
            return
        self._is_closed = True
        parts = self._parts
        outcome = outcome_of(
            error,
            is_preempted=self.preempt.is_acknowledged,
            early_exit=parts.train.early_exit_reason,
        )
        self._ending.outcome = outcome
        if error is not None:
            # The others hear of it now, not after what is left to record.
            self.distributed.__exit__(type(error), error, error.__traceback__)
        with self._stack:
            if parts.observers is None:
                return
            self._stack.callback(parts.observers.ending, outcome)
            if outcome.is_invalid_hp:
                parts.train.report_early_exit(EarlyExitReason.INVALID_HP)

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


def _check_choice(name: str, value: object, choices: type) -> None:
    if not isinstance(value, choices):
        raise ConfigError(f"{name} is {value!r}; expected one of {choices.__name__}'s values")
