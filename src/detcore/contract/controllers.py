"""Define the two kinds of controllers that a framework plugin may implement, and their clock."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy.typing as npt

    from detcore.contract.values import TensorInfo
    from detcore.data import StepDigests

__all__ = [
    "Clock",
    "Decision",
    "LoopingController",
    "PollingClock",
    "PrepareOptions",
    "SavesState",
    "Step",
    "SteppingController",
    "SupportsCommit",
    "SupportsFinish",
    "SupportsLiveState",
    "SupportsSnapshot",
    "SupportsStartFrom",
    "SupportsStateTensors",
    "SupportsTensors",
    "ValidationResult",
]  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """Settings with which a worker process is prepared before the trial is created.

    Attributes:
        seed: Seed for every random generator of the framework, ``0 <= seed < 2**31``; the same on
            all workers.
        deterministic_ops: True or False as configured; None leaves it to the framework's plugin.
        rank: Index of this worker.
        world_size: Number of workers of the trial. A plugin that supports only one worker raises
            `InvalidExperimentError` if it is larger.
        local_rank: Index of this worker within its node, for choosing a device.
        local_world_size: Number of workers on this node.
    """

    seed: int
    deterministic_ops: bool | None = None
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class ValidationResult:
    """Result of a validation.

    Attributes:
        metrics: Validation metrics by name, over all workers.
        n_records: Number of evaluated records over all workers, each counted once; None if unknown.
    """

    metrics: Mapping[str, float]
    n_records: int | None = None


class SavesState(Protocol):
    """Writes a training state into checkpoints; see also `SupportsSnapshot`, `SupportsTensors`."""

    def save(self, directory: Path) -> None:
        """Write the whole training state into a directory that contains only detcore's files.

        After `restore`, training must continue bit for bit as if it had not been interrupted. With
        several workers, the chief's directory is the checkpoint. Other workers write only state
        that they alone have, such as their position in the data, to the directory that
        `TrialContext.worker_directory` returns.
        """


class _Controller(SavesState, Protocol):
    """Methods that both kinds of controllers share.

    Call order: `batches_per_epoch`, then `restore` if the trial is resumed, or `start_from` if it
    starts from another trial's checkpoint (see `SupportsStartFrom`), then training. `validate` and
    `save` may also be called after `restore` and before the first step, for an initial validation
    or for a validation that a killed run did not reach. All calls come from one thread.

    With several workers, each has a controller, and every method is called on all of them at the
    same batch.
    """

    def batches_per_epoch(self) -> int | None:
        """Return the number of batches in one pass over the training data; None if unknown."""

    def validate(self) -> ValidationResult | Mapping[str, float]:
        """Evaluate the model in its current state and return its validation metrics.

        Must not change the training state, including random generators and the data position.
        With several workers, each evaluates a part of the data, and all return the result over all
        of the data.
        """

    def restore(self, directory: Path) -> None:
        """Read the files of `save`. Raises `InvalidCheckpointError` if they do not fit."""

    def close(self) -> None:
        """Release resources. Called once, also after a failure."""


@runtime_checkable
class SteppingController(_Controller, Protocol):
    """A controller that trains a given number of batches: the simplest way to add a framework.

    One call of `train` lasts about half a second, so that interrupts are noticed soon. Its metrics
    are averaged over the calls up to the next report.
    """

    def train(self, num_batches: int) -> Mapping[str, float]:
        """Train exactly `num_batches` batches and return their training metrics.

        Args:
            num_batches: Number of batches to train; >= 1.

        Returns:
            Metrics over these batches, by name.
        """


@runtime_checkable
class LoopingController(_Controller, Protocol):
    """A controller whose framework owns its loop and calls the clock at batch boundaries."""

    def run(self, clock: Clock) -> None:
        """Train until ``clock.boundary(...)`` returns False.

        The loop must call ``clock.boundary`` when ``clock.next_boundary`` batches are completed. It
        may call it earlier, and should do so soon after ``clock.interrupt_requested`` is true.
        """


@runtime_checkable
class SupportsStartFrom(Protocol):
    """A controller of either kind that can start from another trial's checkpoint.

    Only ``searcher.source_checkpoint_uuid`` and ``searcher.source_trial_id`` require this method.
    """

    def start_from(self, directory: Path) -> None:
        """Load the model from another trial's checkpoint, as a fresh trial.

        Weights, the optimizer's state and counters that belong to the model (a global step, the
        optimizer's iterations) get their values from the checkpoint. Hyperparameters (learning
        rate, weight decay, momentum) stay those of the new trial, even if the framework saves them
        with the optimizer's state. The clock, the position in the data and the random generators
        stay those of a trial that starts at batch 0.

        Called instead of `restore`, in every process of the trial that starts before the trial's
        first checkpoint. It must lead to the same training each time.

        Args:
            directory: The checkpoint's directory; read only. It may come from another system, if
                the framework's plugin supports its checkpoints.

        Raises:
            InvalidCheckpointError: If the checkpoint does not fit the model.
        """


@runtime_checkable
class SupportsCommit(Protocol):
    """A controller of either kind that needs to know when a checkpoint exists."""

    def on_commit(self, uuid: str) -> None:
        """Note that a checkpoint was committed; called on the chief, between two batches.

        With asynchronous saves, this is some batches after the checkpoint's. If the process is
        killed between the commit and this call, there is no call for this checkpoint.

        Args:
            uuid: The checkpoint.
        """


@runtime_checkable
class SupportsFinish(Protocol):
    """A controller of either kind that changes or saves its state after the trial has ended."""

    def finish(self, clock: Clock) -> None:
        """Do the work that follows the last batch; call ``clock.save`` if it changes the state.

        Called in place of training, in a process that resumes a trial which has ended. The previous
        process may have been killed before this work was saved. Do nothing if it was saved.

        Args:
            clock: Its `stopped` is "completed" or "stop requested".
        """


@runtime_checkable
class SupportsSnapshot(Protocol):
    """A controller of either kind whose checkpoints can be written while training continues.

    Without this method, `save` writes a checkpoint's files while training waits, and only the
    remaining work (digests, upload, commit) runs in the background.
    """

    def snapshot(self, directory: Path) -> Callable[[], None]:
        """Copy the whole training state, and return a function that writes the copy.

        Called instead of `save`, on the training thread. It must return soon, because training
        continues right after it. It may write small files to the directory immediately. Together
        with the returned function it must write the same files as `save` would at this moment.

        Args:
            directory: As for `save`. It exists until the returned function has finished.

        Returns:
            A function that writes the remaining files. It is called once, on another thread, and
            must not touch anything that training changes. It may raise.
        """


@runtime_checkable
class SupportsTensors(Protocol):
    """A controller of either kind that can describe the tensors in its checkpoints."""

    def tensors(self) -> Sequence[TensorInfo]:
        """Return the tensors in the files of the last `save` or `snapshot`; on the chief."""


@runtime_checkable
class SupportsStateTensors(Protocol):
    """A controller of either kind that supports step digests, and so ``detcore diverge``.

    It calls ``context.digests.log(step, record_ids, content)`` before it trains on a batch, unless
    ``context.digests`` is None.
    """

    def state_tensors(self) -> Mapping[str, npt.ArrayLike]:
        """Return the whole training state as arrays by name, in the order of the computation.

        Called after `restore` and between batches. It must change nothing. Names start with
        ``random.`` (generators), ``gradient.``, ``model.``, ``optimizer.`` or another word, and are
        the same at every call, in the same order. Only gradients may be missing, after they have
        been applied. Arrays may share memory with the training.
        """


@runtime_checkable
class SupportsLiveState(Protocol):
    """A controller with `state_tensors` whose other state is checked after a restore, too."""

    def live_state(self) -> Mapping[str, npt.ArrayLike | None]:
        """Return flags, counters, positions and attributes by name, after a save and a restore.

        It must change nothing, and not call the code that saves the state. Unchanged parts may be
        missing. None stands for a part that training has changed and no checkpoint contains.
        """


class Step(enum.Enum):
    """The kinds of work that can be due."""

    TRAIN = "train"
    REPORT = "report"
    VALIDATE = "validate"
    CHECKPOINT = "checkpoint"
    COMPLETE = "complete"
    STOP = "stop"


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """The next work to do.

    Attributes:
        step: The kind of work.
        until: Batch to train up to, for `Step.TRAIN`; the current batch otherwise.
        reason: The reason, for logs. For `Step.STOP`, "completed", "preempted" or "stop requested".
    """

    step: Step
    until: int
    reason: str


class PollingClock(Protocol):
    """A clock for frameworks that own their loop and their validation.

    After each step the framework calls `due`, does the work it returns, and calls `reported`,
    `validated` or `save`. It then calls `due` again, because the result of a validation, for
    example, decides whether to save.

    ```python
    while (decision := clock.due(step)).step is not Step.STOP:
        if decision.step is Step.TRAIN:
            step += train(decision.until - step)
        elif decision.step is Step.REPORT:
            clock.reported(training_metrics())
        elif decision.step is Step.VALIDATE:
            clock.validated(validation_metrics())
        else:
            clock.save(state)
    ```

    To check each resume, give `state` a method `state_tensors`, and call `watch`.

    With several workers, all of them must make the same calls at the same step.

    Attributes:
        next_boundary: Number of completed steps at which work is due next, unless the trial is
            interrupted earlier.
        steps_completed: Number of completed steps (optimizer updates), over all starts of the
            trial.
        stopped: Why the clock ended training: "completed", "preempted" or "stop requested". None
            before that.
    """

    next_boundary: int
    steps_completed: int
    stopped: str | None

    @property
    def batches_per_epoch(self) -> int:
        """Batches in one epoch, for epoch callbacks; 0 if unknown."""

    @property
    def operation_length(self) -> int:
        """Number of steps at which the searcher's current operation ends."""

    @property
    def digests(self) -> StepDigests | None:
        """Digests of each step's batch, metrics and state; None if they are off."""

    def watch(self, state: Callable[[], SupportsStateTensors]) -> None:
        """Check the restored state, and digest the state at later reports.

        Call it once, before the first step. `state` returns the object that is passed to `save`.

        Raises:
            InexactResumeError: If a part differs from the state at the call of `save`.
        """

    @property
    def interrupt_requested(self) -> bool:
        """Whether work is due before `next_boundary`, because the trial must stop.

        With several workers, all of them must read it after the same batches, equally often. They
        get the same answer: an interrupt of any worker reaches all workers after about 0.25 s.
        """

    def due(self, steps_completed: int, *, early: bool = False) -> Decision:
        """Return the next work. Costs one comparison until a boundary or an interrupt.

        Completes the searcher's operation at its end. Raises the error of a failed background save.

        Args:
            steps_completed: Steps completed, over all starts of the trial.
            early: Whether to report now even if nothing is due yet.

        Returns:
            `Step.TRAIN` with the step to train up to, `Step.REPORT`, `Step.VALIDATE`,
            `Step.CHECKPOINT`, or `Step.STOP` with the reason in `stopped`.

        Raises:
            ScheduleError: If training passed a boundary without a call.
        """

    def reported(
        self,
        metrics: Mapping[str, float],
        batch_metrics: Sequence[Mapping[str, float]] | None = None,
        *,
        n_records: int | None = None,
    ) -> None:
        """Record the training metrics since the last report, after `Step.REPORT`.

        Args:
            metrics: This worker's metrics by name. The report contains the mean over the workers,
                weighted by `n_records`.
            batch_metrics: Metrics of each batch since the last report, oldest first, or None.
            n_records: Number of records in these batches of this worker; None if unknown.
        """

    def validated(self, result: ValidationResult | Mapping[str, float]) -> None:
        """Record a validation, after `Step.VALIDATE`.

        Args:
            result: Validation metrics over all workers. The chief's result is recorded.

        Raises:
            MetricError: If the searcher's metric is missing or not a number.
        """

    def save(self, state: SavesState) -> None:
        """Save a checkpoint with the clock's own state, after `Step.CHECKPOINT`.

        Args:
            state: Writes the training state. If it has a `snapshot` method, that is called instead
                of `save`. If it has `state_tensors`, digests of these are saved for `watch`.
        """

    def request_stop(self) -> None:
        """Request the end of the trial: `due` then returns a last checkpoint and `Step.STOP`."""

    def worker_directory(self, checkpoint: Path) -> Path | None:
        """Return the directory of this worker's files; see `TrialContext.worker_directory`."""


class Clock(PollingClock, Protocol):
    """A clock that calls a controller's methods for the work that is due at a boundary.

    Attributes:
        next_boundary: Number of completed batches at which `boundary` must be called next; always
            more than `steps_completed`.
    """

    def slowest(self, seconds: float) -> float:
        """Return the longest time that any worker measured. All workers must call it together.

        For controllers that adapt the amount of work between two calls of the clock. With several
        workers, all must compute the same amount.
        """

    def boundary(
        self,
        steps_completed: int,
        training_metrics: Mapping[str, float],
        batch_metrics: Sequence[Mapping[str, float]] | None = None,
        *,
        n_records: int | None = None,
    ) -> bool:
        """Report, then validate, checkpoint or stop according to the schedule.

        Calls the controller's `validate` and `save` (or `snapshot`), and raises the error of a
        failed background save. With several workers, all of them must call it at the same batch.

        Args:
            steps_completed: Batches completed, over all starts of the trial.
            training_metrics: This worker's metrics over its batches since the last boundary, by
                name. The report contains the mean over the workers, weighted by `n_records`.
            batch_metrics: Metrics of each of these batches, oldest first, or None.
            n_records: Records in this worker's batches since the last boundary; None if unknown.

        Returns:
            True to continue training, False to return from the training loop.
        """
