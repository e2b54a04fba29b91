"""Define the two controllers, one of which a framework plugin implements to train."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy.typing as npt

    from detcore.trial._clock import Clock
    from detcore.types import TensorInfo

__all__ = [
    "LoopingController",
    "PrepareOptions",
    "SavesState",
    "SteppingController",
    "SupportsSnapshot",
    "SupportsStartFrom",
    "SupportsStateTensors",
    "SupportsTensors",
    "ValidationResult",
    "drive_stepping",
]

# An interrupt is seen between two calls of `train`, so no call should last longer than this.
_LONGEST_CALL_S = 0.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """Settings with which a worker process is prepared before the trial is made.

    Attributes:
        seed: Seed for every random generator of the framework, ``0 <= seed < 2**31``; the same on
            all workers.
        deterministic_ops: True or False as configured; None leaves it to the framework's plugin.
        rank: Index of this worker.
        world_size: Workers of the trial. A plugin that supports only one raises
            `InvalidExperimentError` if it is more.
        local_rank: Index of this worker within its node, for choosing a device.
        local_world_size: Workers on this node.
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
        n_records: Records evaluated, over all workers, each counted once; None if unknown.
    """

    metrics: Mapping[str, float]
    n_records: int | None = None


class SavesState(Protocol):
    """Writes a training state into checkpoints; see also `SupportsSnapshot`, `SupportsTensors`."""

    def save(self, directory: Path) -> None:
        """Write the whole training state into a folder that contains only detcore's files.

        After `restore`, training must continue bit for bit as if it had not been interrupted. With
        several workers, the chief's folder is the checkpoint. Other workers write only state that
        they alone have, such as their position in the data; `TrialContext.own_folder` returns it.
        """


class _Controller(SavesState, Protocol):
    """Methods that both kinds of controllers share.

    Call order: `batches_per_epoch`, then `restore` if the trial is resumed, else `start_from` if
    it starts from another trial's checkpoint (see `SupportsStartFrom`), then training.
    `validate` and `save` may also be called after `restore` and before the first step: for an
    initial validation, or one that a killed run did not reach. All calls come from one thread.

    A trial of several workers has a controller on each, and every method is called on all of them
    at the same batch.
    """

    def batches_per_epoch(self) -> int | None:
        """Return the number of batches in one pass over the training data; None if unknown."""

    def validate(self) -> ValidationResult | Mapping[str, float]:
        """Evaluate the model in its current state and return its validation metrics.

        Must not change the training state, including random generators and the data position.
        Each of several workers evaluates a part of the data, and all return the result over all of
        it.
        """

    def restore(self, directory: Path) -> None:
        """Read the files of `save`. Raises `InvalidCheckpointError` if they do not fit."""

    def close(self) -> None:
        """Release resources; called once, also after a failure."""


@runtime_checkable
class SteppingController(_Controller, Protocol):
    """A controller that trains a given number of batches: the smallest way to add a framework.

    `train` is called for about half a second of training at a time, so that interrupts are seen
    soon; its metrics are averaged over the calls up to the next report.
    """

    def train(self, num_batches: int) -> Mapping[str, float]:
        """Train exactly that many batches and return the training metrics over them.

        Args:
            num_batches: Batches to train; >= 1.

        Returns:
            Metrics of these batches, by name.
        """


@runtime_checkable
class LoopingController(_Controller, Protocol):
    """A controller whose framework owns its loop and calls the clock at batch boundaries."""

    def run(self, clock: Clock) -> None:
        """Train until ``clock.boundary(...)`` returns False.

        The loop must call ``clock.boundary`` when ``clock.next_boundary`` batches are completed,
        and may call it earlier; it should do so soon after ``clock.interrupt_requested`` is true.
        """


@runtime_checkable
class SupportsStartFrom(Protocol):
    """A controller of either kind that can start from another trial's checkpoint.

    Required by ``searcher.source_checkpoint_uuid`` and ``searcher.source_trial_id``: with these
    settings, and only then, a controller without this method is an error.
    """

    def start_from(self, directory: Path) -> None:
        """Load the model from another trial's checkpoint, as a fresh trial.

        Weights, the optimizer's state and counters that belong to the model (a global step, the
        optimizer's iterations) take their values from the checkpoint. The clock, the position in
        the data and the random generators stay those of a trial that starts at batch 0.

        Called instead of `restore`, in every process of the trial that starts before the trial's
        first checkpoint, and must lead to the same training each time.

        Args:
            directory: The checkpoint's folder, to be read only. It may come from another system,
                if the framework's plugin supports its checkpoints.

        Raises:
            InvalidCheckpointError: If it does not fit the model.
        """


@runtime_checkable
class SupportsSnapshot(Protocol):
    """A controller of either kind whose checkpoints can be written while training continues.

    Without this method, `save` writes a checkpoint's files while training waits, and only the
    remaining work (digests, upload, commit) runs in the background.
    """

    def snapshot(self, directory: Path) -> Callable[[], None]:
        """Copy the whole training state, and return a function that writes the copy.

        Called instead of `save`, on the training thread, and must return soon: training continues
        right after it. Small files may be written to the folder immediately. Together with the
        returned function it must leave the same files as `save` would at this moment.

        Args:
            directory: As for `save`; it exists until the returned function has finished.

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
    """A controller of either kind that takes part in step digests, and so in ``detcore diverge``.

    It calls ``context.digests.log(step, record_ids, content)`` before it trains on a batch, unless
    ``context.digests`` is None.
    """

    def state_tensors(self) -> Mapping[str, npt.ArrayLike]:
        """Return the whole training state as arrays by name, in the order of the computation.

        Called after `restore`, and between batches; it must change nothing. Names start with
        ``random.`` (generators), ``gradient.``, ``model.``, ``optimizer.`` or another word, are the
        same at every call and in every process, and so is their order; only gradients may be
        missing, when they are used up. Arrays may share the training's memory; they are read before
        training continues.
        """


def drive_stepping(controller: SteppingController, clock: Clock) -> None:
    """Train until the clock says stop.

    A stretch up to the clock's next boundary is trained in calls of about half a second; their
    metrics are averaged, weighted by their batches.

    Args:
        controller: The trial's controller.
        clock: Says how far to train, and does the work that is due there.
    """
    pace = 1
    going = True
    while going:
        done, sums = 0, dict[str, float]()
        wanted = clock.next_boundary - clock.steps_completed
        while done < wanted and not (done and clock.interrupt_requested):
            count = min(pace, wanted - done)
            began = time.monotonic()
            metrics = controller.train(count)
            pace = _next_pace(count, clock.slowest(time.monotonic() - began))
            _add(sums, metrics, count)
            done += count
        means = {name: total / done for name, total in sums.items()}
        going = clock.boundary(clock.steps_completed + done, means)


def _next_pace(count: int, seconds: float) -> int:
    """Return how many batches to train in the next call; at most twice as many as in this one."""
    return max(1, min(2 * count, int(count * _LONGEST_CALL_S / max(seconds, 1e-6))))


def _add(sums: dict[str, float], metrics: Mapping[str, float], count: int) -> None:
    for name, value in metrics.items():
        sums[name] = sums.get(name, 0.0) + float(value) * count
