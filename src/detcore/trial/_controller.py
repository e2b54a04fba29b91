"""What a framework plugin implements to train: one of two controllers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from detcore.trial._clock import Clock
    from detcore.types import TensorInfo

__all__ = [
    "LoopingController",
    "PrepareOptions",
    "SteppingController",
    "SupportsSnapshot",
    "SupportsStartFrom",
    "SupportsTensors",
    "ValidationResult",
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """How a worker process is prepared before the trial is made.

    Attributes:
        seed: Seed for every random generator of the framework, ``0 <= seed < 2**31``; the same on
            all workers.
        deterministic_ops: True or False as configured; None = the framework's plugin decides.
        rank: Index of this worker.
        world_size: Workers of the trial. A plugin that takes only one raises
            `InvalidExperimentError` where it is more.
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
    """What a validation found.

    Attributes:
        metrics: Validation metrics by name, over all workers.
        n_records: Records that were evaluated, over all workers, each counted once; None = unknown.
    """

    metrics: Mapping[str, float]
    n_records: int | None = None


class _Controller(Protocol):
    """What both shapes share.

    Call order: `batches_per_epoch`, then `restore` if the trial is resumed, else `start_from` if
    it starts from another trial's checkpoint (see `SupportsStartFrom`), then training.
    `validate` and `save` may also be called after `restore` and before the first step: an initial
    validation, or one that a killed run did not get to. All calls come from one thread.

    A trial of several workers has a controller on each, and every method is called on all of them
    at the same batch.
    """

    def batches_per_epoch(self) -> int | None:
        """Return how many batches one pass over the training data has; None if unknown."""

    def validate(self) -> ValidationResult | Mapping[str, float]:
        """Evaluate the model as it is and return its validation metrics.

        Must leave the training state as it was: random generators and data position included.
        Several workers evaluate a part of the data each, and all return the result over all of it.
        """

    def save(self, directory: Path) -> None:
        """Write the whole training state into a folder that is empty but for detcore's files.

        What `restore` reads must make training go on bit for bit as if never interrupted. Of
        several workers, the chief's folder is the checkpoint. Another one writes only what it
        alone has, such as its position in its data; `TrialContext.own_folder` finds it again.
        """

    def restore(self, directory: Path) -> None:
        """Read what `save` wrote. Raises `InvalidCheckpointError` where it does not fit."""

    def close(self) -> None:
        """Release what was taken; called once, also after a failure."""


@runtime_checkable
class SteppingController(_Controller, Protocol):
    """A controller that is told how many batches to train: the smallest way to add a framework.

    `train` is called for a stretch of about half a second at a time, so that an interrupt is
    seen soon; what it returns is averaged over the stretches up to the next report.
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
    """A controller whose framework owns its loop and asks the clock at batch boundaries."""

    def run(self, clock: Clock) -> None:
        """Train until ``clock.boundary(...)`` returns False.

        The loop must call ``clock.boundary`` when ``clock.next_boundary`` batches are done, and
        may call it earlier; it should do so soon after ``clock.interrupt_requested`` is true.
        """


@runtime_checkable
class SupportsStartFrom(Protocol):
    """A controller of either shape that can start from what another trial learned.

    It is what ``searcher.source_checkpoint_uuid`` and ``searcher.source_trial_id`` need. A
    controller without this method is an error there, and nowhere else.
    """

    def start_from(self, directory: Path) -> None:
        """Take over what another trial's checkpoint holds of the model, as a fresh trial.

        Weights, the optimizer's state and counters that are part of the model (a global step, the
        optimizer's iterations) become what they are in the checkpoint. The clock, the position in
        the data and the random generators stay those of a trial that starts at batch 0.

        Called instead of `restore`, in every process of the trial that starts before the trial has
        a checkpoint of its own, and must lead to the same training each time.

        Args:
            directory: The checkpoint's folder; it is only read. It may come from another system,
                if the framework's plugin knows its checkpoints.

        Raises:
            InvalidCheckpointError: If it does not fit the model.
        """


@runtime_checkable
class SupportsSnapshot(Protocol):
    """A controller of either shape whose checkpoints can be written while training goes on.

    Without this method a checkpoint's files are written by `save` while training stands still; only
    what comes after (digests, upload, commit) goes on behind it.
    """

    def snapshot(self, directory: Path) -> Callable[[], None]:
        """Copy the whole training state, and return what writes the copy.

        Called in the place of `save`, on the thread that trains, and must return soon: training
        goes on right after. What is small may be written to the folder at once. Both together
        leave the same files there as `save` would have at that moment.

        Args:
            directory: As for `save`; it stays until the returned function is done.

        Returns:
            A function that writes what was not written yet. It is called once, on another
            thread, and must touch nothing that training changes. It may raise.
        """


@runtime_checkable
class SupportsTensors(Protocol):
    """A controller of either shape that can tell which tensors its checkpoints hold."""

    def tensors(self) -> Sequence[TensorInfo]:
        """Return the tensors in what the last `save` or `snapshot` wrote; on the chief."""
