"""Report metrics and the status of a trial."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from detcore.contract.errors import ContextStateError, InexactResumeError, NotANumberError
from detcore.core.context_options import EarlyExitReason, TensorboardMode
from detcore.core.metric_values import clean_batch_metrics, clean_count, clean_metrics
from detcore.core.tensorboard_events import EventFile
from detcore.log.events import ResumeCompared

if TYPE_CHECKING:
    import numpy.typing as npt

    from detcore.contract.values import TrialInfo
    from detcore.core.trial_records import TrialRecords
    from detcore.data import ResumeComparison, StepDigests
    from detcore.distributed import DistributedContext
    from detcore.storage import StorageBackend


_IGNORED_CHECKPOINT = """\
this trial resumed from batch %s (checkpoint %s), but its code restored no checkpoint and reports \
batch %s: it trains from the start again.
Restore the checkpoint before training, and continue from batch context.info.steps_completed:
  if context.info.latest_checkpoint is not None:
      with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
          ...  # load the files that the script has saved"""


class TrainContext:
    """Records the metrics and the status of a trial.

    Metrics are durable when a ``report_*`` call returns: they survive if the process is killed at
    any later moment. The runner moves them into the database in the background.

    Attributes:
        early_exit_reason: The first reason passed to `report_early_exit`, or None.
        stops_at_nan: Whether reporting a NaN raises, after recording it. Set by ``stop_at_nan`` of
            the experiment file. False for trial classes, whose workers decide together.
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
        self._digests: StepDigests | None = None  # set by `open_digests`
        self._digests_reports = True
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

        Example:
            >>> from detcore import core
            >>> with core.init() as context:
            ...     context.train.report_training_metrics(100, {"loss": 0.25, "accuracy": 0.9})

        Args:
            steps_completed: Batches trained since the trial first started.
            metrics: Numbers by name, over the batches since the last report. NaN and infinities
                are kept.
            batch_metrics: Metrics of each of these batches, oldest first, or None.
            n_records: Number of records that the metrics cover, over all workers; None if unknown.

        Raises:
            MetricError: If a value is None or not a single number; the message names the metric.
            NotANumberError: If a metric is NaN and `stops_at_nan` is true.
            StorageFullError: If the disk is full.
        """
        self._record_metrics("training", steps_completed, metrics, batch_metrics, n_records)

    def report_validation_metrics(
        self,
        steps_completed: int,
        metrics: Mapping[str, Any],
        *,
        n_records: int | None = None,
    ) -> None:
        """Record validation metrics. Call it on the chief.

        Example:
            >>> from detcore import core
            >>> with core.init() as context:
            ...     context.train.report_validation_metrics(100, {"loss": 0.3})

        Args:
            steps_completed: Batches trained since the trial first started.
            metrics: Numbers by name; NaN and infinities are kept.
            n_records: Number of records that the metrics cover, over all workers; None if unknown.

        Raises:
            MetricError: If a value is None or not a single number; the message names the metric.
            NotANumberError: If a metric is NaN and `stops_at_nan` is true.
            StorageFullError: If the disk is full.
        """
        self._record_metrics("validation", steps_completed, metrics, None, n_records)

    def digest_batch(
        self,
        step: int,
        record_ids: npt.ArrayLike | None = None,
        content: Iterable[npt.ArrayLike] = (),
    ) -> None:
        """Record digests of a batch for ``detcore diverge``, before training on it.

        Call it on each worker of a custom training loop. Trial classes record digests
        automatically. Digests are kept for every k-th step, where k is
        ``reproducibility.step_digests``, and for every step of a standalone script. After the first
        call, reported training metrics are digested as well.

        Args:
            step: Batches trained after this step: the first step of a trial is 1.
            record_ids: Integers, ``(n,)``, or None if unknown.
            content: Arrays of the batch, in a fixed order; empty if unknown.
        """
        digests = self.open_digests()
        if digests is not None:
            digests.log(step, record_ids, content)

    def digest_state(self, step: int, tensors: Mapping[str, npt.ArrayLike]) -> None:
        """Record digests of the training state after a step, and write all digests.

        Args:
            step: Batches trained; 0 before the first step.
            tensors: Arrays by name; see `detcore.trial.SupportsStateTensors`.
        """
        digests = self.open_digests()
        if digests is not None:
            digests.digest_state(step, tensors)
            digests.flush()

    def open_digests(self, *, with_reports: bool = True) -> StepDigests | None:
        """Return the digests of a custom loop's steps; None if they are off. For framework plugins.

        Args:
            with_reports: Whether reported training metrics and the state at reports are digested.
        """
        interval = self._info.settings.step_digests
        self._digests_reports = self._digests_reports and with_reports
        if self._digests is None and interval and not self._info.test_mode:
            from detcore.data import StepDigests

            workers = self._distributed
            self._digests = StepDigests.for_trial(
                self._info,
                every=interval,
                rank=workers.rank,
                world_size=workers.size,
                on_compared=self.record_resume,
            )
        return self._digests

    def record_resume(self, comparison: ResumeComparison) -> None:
        """Record how a resumed run compares with the steps that an earlier run had trained.

        Args:
            comparison: The result.

        Raises:
            InexactResumeError: If they differ, and ``reproducibility.inexact_resume`` is "fail".
        """
        difference = comparison.difference
        if self._records is not None:
            self._records.append_event(
                ResumeCompared(
                    start_step=comparison.start_step,
                    last_step=comparison.last_step,
                    num_compared=comparison.num_compared,
                    difference=None if difference is None else dataclasses.asdict(difference),
                )
            )
        import logging

        reaction = self._info.settings.inexact_resume
        if difference is not None and reaction == "fail":
            raise InexactResumeError(
                f"{comparison}.\n"
                "The checkpoint lacks a part of the state, or an operation is not deterministic.\n"
                "Find the cause with 'detcore replay'. To train on nevertheless, set "
                "reproducibility.inexact_resume: warn."
            )
        if difference is not None and reaction == "warn":
            logging.getLogger("detcore").warning("%s", comparison)
        elif difference is None and not self._distributed.rank:
            logging.getLogger("detcore").info("%s", comparison)

    def get_experiment_best_validation(self) -> float | None:
        """Return the best value of the searcher's metric over all trials of the experiment.

        None before the first validation, or if no experiment file names a metric. Reports of a
        killed run that came after the checkpoint from which this trial resumed are ignored. Call it
        on the chief.
        """
        return self._get_chief_records("get_experiment_best_validation").get_best_validation()

    def set_status(self, status: str) -> None:
        """Set a short status that displays show; only the chief's status is used."""
        if self._records is not None:
            self._records.send_status(str(status))

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """Report why the trial ends early. Only the first reason is recorded."""
        records = self._get_chief_records("report_early_exit")
        reason = EarlyExitReason(reason)
        if self.early_exit_reason is None:
            self.early_exit_reason = reason
            records.record_early_exit(reason)

    def get_tensorboard_path(self) -> Path:
        """Return the directory of this trial's event files, creating it if necessary."""
        self._tensorboard_path.mkdir(parents=True, exist_ok=True)
        return self._tensorboard_path

    def upload_tensorboard_files(
        self,
        selector: Callable[[Path], bool] = lambda _: True,
        mangler: Callable[[Path, int], Path] = lambda path, _: path,
    ) -> list[str]:
        """Copy files below `get_tensorboard_path` to the checkpoint storage.

        The copies are stored under ``tensorboard/experiment/<id>/trial/<id>/``. Copies of the same
        name are replaced.

        Args:
            selector: Selects files by their path relative to the directory.
            mangler: Returns the name of a copy, given the relative path and this worker's rank.

        Returns:
            The storage keys of the copies.

        Raises:
            ContextStateError: In AUTO mode, which writes event files automatically.
        """
        if self._mode is TensorboardMode.AUTO:
            raise ContextStateError(
                "upload_tensorboard_files() was called in TensorboardMode.AUTO.\n"
                "This mode writes event files automatically.\n"
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

    def _record_metrics(
        self,
        kind: Literal["training", "validation"],
        steps_completed: int,
        raw_metrics: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None,
        n_records: int | None,
    ) -> None:
        steps = clean_count("steps_completed", steps_completed)
        metrics = clean_metrics(raw_metrics, kind)
        batches = clean_batch_metrics(batch_metrics)
        if n_records is not None:
            n_records = clean_count("n_records", n_records)
        if kind == "training" and self._digests is not None and self._digests_reports:
            self._digests.log_metrics(steps, batches or [metrics])
            self._digests.log_state(steps)
            self._digests.flush()
        records = self._records or self._get_chief_records(f"report_{kind}_metrics")
        if self._may_ignore_checkpoint:
            self._warn_of_ignored_checkpoint(steps)
        records.record_metrics(kind, steps, metrics, batches, n_records)
        if self._mode is TensorboardMode.AUTO and metrics:
            scalars = {_format_tag(kind, name): value for name, value in metrics.items()}
            self._event_file.add_scalars(steps, scalars)
        if self.stops_at_nan:
            where = f"the {kind} report at batch {steps}"
            for values in (*(batches or ()), metrics):
                NotANumberError.raise_if_nan(values, where)
        elif self._may_warn_of_nan:
            self._warn_of_nan(kind, steps, metrics)

    def _warn_of_nan(self, kind: str, steps: int, metrics: Mapping[str, Any]) -> None:
        """Log a warning about the first NaN, naming the setting that would end the trial."""
        for name, value in metrics.items():
            if isinstance(value, float) and math.isnan(value):
                import logging

                self._may_warn_of_nan = False
                logging.getLogger("detcore").warning(
                    "%s is NaN in the %s report at batch %d, and training continues. "
                    "To end a trial at its first NaN, set stop_at_nan: true in the configuration.",
                    name, kind, steps,
                )  # fmt: skip
                return

    def _warn_of_ignored_checkpoint(self, steps: int) -> None:
        """Log a warning if the first report of a resumed trial shows that it started over."""
        self._may_ignore_checkpoint = False
        info = self._info
        if steps < info.steps_completed and not self._has_restored():
            import logging

            logging.getLogger("detcore").warning(
                _IGNORED_CHECKPOINT, info.steps_completed, info.latest_checkpoint, steps
            )

    def _get_chief_records(self, name: str) -> TrialRecords:
        if self._records is None:
            raise ContextStateError(
                f"{name}() was called on rank {self._distributed.rank}.\n"
                "Only rank 0 reports for the trial: call it there only."
            )
        return self._records


def _format_tag(kind: str, name: str) -> str:
    is_prefixed = kind == "training" or name.startswith("val_")
    return f"detcore/{name}" if is_prefixed else f"detcore/val_{name}"
