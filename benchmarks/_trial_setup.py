"""Create the context and the clock of a trial without a runner, for benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class BenchmarkClock:
    """A clock with a boundary after every few steps.

    Args:
        every: Number of steps between two boundaries.
        batches_per_epoch: Batches in an epoch. 0 = unknown.
    """

    interrupt_requested = False
    # After a preemption, a controller saves no final checkpoint.
    stopped = "preempted"

    def __init__(self, every: int, batches_per_epoch: int = 0) -> None:
        self.steps_completed = 0
        self.next_boundary = self._every = every
        self.batches_per_epoch = batches_per_epoch

    def at_boundary(self, steps: int) -> bool:
        """Measure, and return whether training continues."""
        raise NotImplementedError

    def boundary(
        self,
        steps_completed: int,
        training_metrics: Any,
        batch_metrics: Any = None,
        *,
        n_records: int | None = None,
    ) -> bool:
        """See `detcore.trial.Clock`."""
        self.steps_completed = steps_completed
        self.next_boundary = steps_completed + self._every
        return self.at_boundary(steps_completed)

    def slowest(self, seconds: float) -> float:
        """Return the longest time of all workers, which is the time of this worker."""
        return seconds


def make_setup(folder: Path, global_batch_size: int, distributed: Any = None) -> Any:
    """Return a `TrialSetup`.

    Args:
        folder: Directory of all files of the trial.
        global_batch_size: Number of records in a batch of all workers.
        distributed: Workers of the trial. Default: only this process.
    """
    from detcore.distributed import DistributedContext
    from detcore.trial import TrialSetup
    from detcore.types import TrialInfo

    hparams = {"global_batch_size": global_batch_size}
    info = TrialInfo(
        experiment_id=1,
        trial_id=1,
        run_id=1,
        trial_seed=1,
        hparams=hparams,
        config={},
        model_dir=str(folder),
        trial_dir=str(folder),
    )
    alone = {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1, "cross_rank": 0}
    return TrialSetup(
        config={},
        hparams=hparams,
        seed=1,
        distributed=distributed or DistributedContext(**alone, cross_size=1),
        info=info,
        tensorboard_path=folder / "tensorboard",
        cache_dir=folder,
    )
