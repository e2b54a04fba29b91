"""Reports metrics and the status of a training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from detcore.contract.errors import ContextStateError, NotANumberError
from detcore.core.context_options import EarlyExitReason, TensorboardMode
from detcore.core.metric_values import clean_batch_metrics, clean_count, clean_metrics
from detcore.core.tensorboard_events import EventFile

if TYPE_CHECKING:
    import numpy.typing as npt

    from detcore.contract.values import TrialInfo
    from detcore.core.trial_records import TrialRecords
    from detcore.data import StepDigests
    from detcore.distributed import DistributedContext
    from detcore.storage import StorageBackend


_IGNORED = """\
this trial resumed from batch %s (checkpoint %s), but the code restored no checkpoint and reports \
batch %s: it trains from the start again.
Restore before training, and continue from batch context.info.steps_completed:
  if context.info.latest_checkpoint is not None:
      with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
          ...  # load the files that the script saved"""


class TrainContext:
    """Records metrics and status of a trial.

    A metric is safe when its ``report_*`` call returns: it survives the death of the process at
    any later moment. Moving it into the database happens in the background.

    Attributes:
        early_exit_reason: The first reason given to `report_early_exit`, or None.
        stops_at_nan: Whether a report with a metric that is NaN raises, once it is recorded: as
            ``stop_at_nan`` of the experiment file says. False for trial classes, whose workers
            decide together.
    """

    def __init__(
        self,
        info: TrialInfo,
        *,
        distributed: DistributedContext,
        records: TrialRecords | None,
        storage: StorageBackend,
        tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
        has_restored: Callable[[], bool] = lambda: True,
    ) -> None:
        self._info = info
        self._distributed = distributed
        self._records = records
        self._storage = storage
        self._mode = tensorboard_mode
        self._tensorboard_path = Path(info.trial_dir) / "tensorboard"
        if distributed.rank:
            self._tensorboard_path = Path(info.trial_dir) / f"tensorboard-{distributed.rank}"
        self._event_file = EventFile(self._tensorboard_path)
        self._has_restored = has_restored
        self._may_ignore_checkpoint = info.latest_checkpoint is not None
        self._digests: StepDigests | None = None  # of a loop that records them
        self.early_exit_reason: EarlyExitReason | None = None
        self.stops_at_nan = info.settings.stop_at_nan
        self._may_warn_of_nan = not self.stops_at_nan

    def report_training_metrics(
        self,
        steps_completed: int,
        metrics: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
        *,
        n_records: int | None = None,
    ) -> None:
        """Record training metrics. Call it on the chief.

        Args:
            steps_completed: Batches trained since the trial first started.
            metrics: Numbers by name, over the batches since the last report; NaN and infinities
                are kept.
            batch_metrics: The metrics of each of these batches, oldest first, or None.
            n_records: Over how many records they are, all workers together; None = unknown.

        Raises:
            MetricError: If a value is None or no single number; the message names it.
            NotANumberError: If a metric is NaN, and the experiment ends at the first one.
            StorageFullError: If there is no room for it on the disk.
        """
        self._report("training", steps_completed, metrics, batch_metrics, n_records)

    def report_validation_metrics(
        self,
        steps_completed: int,
        metrics: Mapping[str, Any],
        *,
        n_records: int | None = None,
    ) -> None:
        """Record validation metrics. Call it on the chief.

        Args:
            steps_completed: Batches trained since the trial first started.
            metrics: Numbers by name; NaN and infinities are kept.
            n_records: Over how many records they are, all workers together; None = unknown.

        Raises:
            MetricError: If a value is None or no single number; the message names it.
            NotANumberError: If a metric is NaN, and the experiment ends at the first one.
            StorageFullError: If there is no room for it on the disk.
        """
        self._report("validation", steps_completed, metrics, None, n_records)

    def digest_batch(
        self,
        step: int,
        record_ids: npt.ArrayLike | None = None,
        content: Iterable[npt.ArrayLike] = (),
    ) -> None:
        """Record digests of a batch for ``detcore diverge``, before training on it.

        For loops of your own, on each worker; trial classes do this by themselves. Every k-th step
        counts, as ``reproducibility.step_digests`` says; every step in a script by itself. Reported
        training metrics are digested from the first call on.

        Args:
            step: Batches trained once this step is done, so the first step of a trial is 1.
            record_ids: Integers, ``(n,)``; None: not known.
            content: The batch's arrays, in a fixed order; none: not known.
        """
        digests = self._open_digests()
        if digests is not None:
            digests.log(step, record_ids, content)

    def digest_state(self, step: int, tensors: Mapping[str, npt.ArrayLike]) -> None:
        """Record digests of the training state after a step, and pass all digests to the kernel.

        Args:
            step: Batches trained; 0 before the first step.
            tensors: Arrays by name, as `detcore.trial.SupportsStateTensors` names them.
        """
        digests = self._open_digests()
        if digests is not None:
            digests.digest_state(step, tensors)
            digests.flush()

    def get_experiment_best_validation(self) -> float | None:
        """Return the best value of the searcher's metric over all trials of the experiment.

        None before the first validation, and where no experiment file names a metric. Reports of a
        killed run of this trial beyond the checkpoint it resumed from do not count. Call it on the
        chief.
        """
        return self._need_chief("get_experiment_best_validation").best_validation()

    def set_status(self, status: str) -> None:
        """Set the status of the trial that displays show, in a few words; the chief's counts."""
        if self._records is not None:
            self._records.send_status(str(status))

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """Say why the trial ends early. The first reason stands; later ones are ignored."""
        records = self._need_chief("report_early_exit")
        reason = EarlyExitReason(reason)
        if self.early_exit_reason is None:
            self.early_exit_reason = reason
            records.early_exit(reason)

    def get_tensorboard_path(self) -> Path:
        """Return the folder of this trial's event files; it exists."""
        self._tensorboard_path.mkdir(parents=True, exist_ok=True)
        return self._tensorboard_path

    def upload_tensorboard_files(
        self,
        selector: Callable[[Path], bool] = lambda _: True,
        mangler: Callable[[Path, int], Path] = lambda path, _: path,
    ) -> list[str]:
        """Copy files below `get_tensorboard_path` to the checkpoint storage.

        They go under ``tensorboard/experiment/<id>/trial/<id>/``; copies of the same name are
        replaced.

        Args:
            selector: Chooses the files, by their paths relative to the folder.
            mangler: Returns the name of the copy, from the relative path and this worker's rank.

        Returns:
            The keys written.

        Raises:
            ContextStateError: If the mode is AUTO, which takes care of event files itself.
        """
        if self._mode is TensorboardMode.AUTO:
            raise ContextStateError(
                "upload_tensorboard_files() was called in TensorboardMode.AUTO.\n"
                "In that mode event files are written for you.\n"
                "Pass tensorboard_mode=TensorboardMode.MANUAL to core.init()."
            )
        root = self._tensorboard_path
        prefix = f"tensorboard/experiment/{self._info.experiment_id}/trial/{self._info.trial_id}"
        pairs = []
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            name = path.relative_to(root)
            if selector(name):
                target = mangler(name, self._distributed.rank)
                pairs.append((path, f"{prefix}/{target.as_posix()}"))
        self._storage.put_tree(pairs)
        return [key for _, key in pairs]

    def close(self) -> None:
        """Close the event file, and write the remaining digests."""
        self._event_file.close()
        if self._digests is not None:
            self._digests.close()

    def _open_digests(self) -> StepDigests | None:
        """Return the digests of a loop of the user's; None if they are off."""
        every = self._info.settings.step_digests
        if self._digests is None and every and not self._info.test_mode:
            from detcore.data import StepDigests

            place = self._distributed
            self._digests = StepDigests.for_trial(
                self._info, every=every, rank=place.rank, world_size=place.size
            )
        return self._digests

    def _report(
        self,
        kind: Literal["training", "validation"],
        steps_completed: int,
        given: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None,
        n_records: int | None,
    ) -> None:
        steps = clean_count("steps_completed", steps_completed)
        metrics = clean_metrics(given, kind)
        batches = clean_batch_metrics(batch_metrics)
        if n_records is not None:
            n_records = clean_count("n_records", n_records)
        if kind == "training" and self._digests is not None:
            self._digests.log_metrics(steps, batches or [metrics])
            self._digests.flush()
        records = self._records or self._need_chief(f"report_{kind}_metrics")
        if self._may_ignore_checkpoint:
            self._warn_of_ignored_checkpoint(steps)
        records.report(kind, steps, metrics, batches, n_records)
        if self._mode is TensorboardMode.AUTO and metrics:
            scalars = {_tag(kind, name): value for name, value in metrics.items()}
            self._event_file.add_scalars(steps, scalars)
        if self.stops_at_nan:
            where = f"the {kind} report at batch {steps}"
            for each in (*(batches or ()), metrics):
                NotANumberError.raise_if_nan(each, where)
        elif self._may_warn_of_nan:
            self._warn_of_nan(kind, steps, metrics)

    def _warn_of_nan(self, kind: str, steps: int, metrics: Mapping[str, Any]) -> None:
        """Warn of the first metric that is NaN, and name the setting that ends a trial there."""
        for name, value in metrics.items():
            if isinstance(value, float) and math.isnan(value):
                import logging

                self._may_warn_of_nan = False
                logging.getLogger("detcore").warning(
                    "%s is NaN in the %s report at batch %d, and training continues. "
                    "With stop_at_nan: true in the configuration, a trial ends at its first NaN.",
                    name, kind, steps,
                )  # fmt: skip
                return

    def _warn_of_ignored_checkpoint(self, steps: int) -> None:
        """Warn if the first report of a resumed trial shows that it starts from the beginning."""
        self._may_ignore_checkpoint = False
        info = self._info
        if steps < info.steps_completed and not self._has_restored():
            import logging

            logging.getLogger("detcore").warning(
                _IGNORED, info.steps_completed, info.latest_checkpoint, steps
            )

    def _need_chief(self, name: str) -> TrialRecords:
        if self._records is None:
            raise ContextStateError(
                f"{name}() was called on rank {self._distributed.rank}.\n"
                "One worker reports for the trial: call it on rank 0 only."
            )
        return self._records


def _tag(kind: str, name: str) -> str:
    is_prefixed = kind == "training" or name.startswith("val_")
    return f"detcore/{name}" if is_prefixed else f"detcore/val_{name}"
