"""Train up to a batch, with many batches per graph call or batch by batch."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from detcore.errors import DataError, NotANumberError
from detcore_keras.frameworks import backend

if TYPE_CHECKING:
    from detcore.data import LedgerWriter, StepDigests
    from detcore_keras.backends.backend import TrainSteps
    from detcore_keras.callbacks.callback_list import CallbackMultiplexer
    from detcore_keras.data.feed import Feed


_logger = logging.getLogger("detcore.keras")

# Signals are handled between two graph calls, so no call should last longer than this.
_MAX_CALL_S = 0.5
_FIRST_CALL_BATCHES = 8
_FIRST_GUESS_S = _MAX_CALL_S / (4 * _FIRST_CALL_BATCHES)
# Training may become slower over time, so the pace is measured at least this often.
_CALLS_BETWEEN_POLLS = 10
# Outputs of a step that are not the model's metrics.
_PRIVATE = "detcore/"


@dataclasses.dataclass
class UnitMetrics:
    """Metrics of consecutive batches, as ``train_step`` returned them, oldest first.

    Attributes:
        batches: Metrics of each batch.
        means: Keras's running results over the unit, and over all workers if callbacks see them.
        n_records: Records in this worker's batches; None if unknown.
    """

    batches: list[dict[str, float]] = dataclasses.field(default_factory=list)
    means: Mapping[str, float] = dataclasses.field(default_factory=dict)
    n_records: int | None = 0


class Units:
    """Trains batches of a feed. Subclasses implement the training.

    All workers train the same number of batches between two checks for an interrupt, and check
    equally often, so all of them get the same answer.

    Args:
        model: The model.
        steps: The model's training step.
        feed: Source of batches.
        callbacks: The user's callbacks.
        ledger: Log of record ids, or None.
        digests: Digests of each step, or None.
        epoch_batches: Batches of an epoch if callbacks of any worker run at its end, otherwise 0.
        slowest: Returns the longest time of any worker, in seconds.
        mean_metrics: Averages this worker's metrics over all workers; None to keep them.
        after_first_batch: Called once, after the first batch, or None.
    """

    def __init__(
        self,
        *,
        model: Any,
        steps: TrainSteps,
        feed: Feed,
        callbacks: CallbackMultiplexer,
        ledger: LedgerWriter | None,
        digests: StepDigests | None,
        epoch_batches: int,
        slowest: Callable[[float], float],
        mean_metrics: Callable[[Mapping[str, float], int | None], Mapping[str, float]] | None,
        after_first_batch: Callable[[], None] | None = None,
    ) -> None:
        self.model = model
        self.steps = steps
        self.feed = feed
        self.callbacks = callbacks
        self.ledger = ledger
        self.digests = digests
        self._epoch_batches = epoch_batches
        self.slowest = slowest
        self._mean_metrics = mean_metrics
        self._after_first_batch = after_first_batch
        self._loss_is_finite = True
        self._left_out: set[str] = set()

    def train_until(self, until: int, interrupted: Callable[[], bool]) -> UnitMetrics:
        """Train up to batch `until`, or to the batch at which `interrupted` becomes true.

        Raises:
            DataError: If the data ends.
        """
        metrics = UnitMetrics()
        begin, records = self.feed.position, self.feed.records
        self.callbacks.workload_begin(begin, until - begin)
        has_stopped = False

        def is_interrupted() -> bool:
            nonlocal has_stopped
            has_stopped = has_stopped or interrupted()
            return has_stopped

        try:
            while self.feed.position < until and not is_interrupted():
                target = until
                if self._epoch_batches:
                    epoch = self.feed.position // self._epoch_batches
                    target = min(until, (epoch + 1) * self._epoch_batches)
                metrics.batches.extend(
                    self.train_batches(target - self.feed.position, is_interrupted)
                )
        except backend.end_errors as error:
            if self.feed.position == 0:
                raise DataError(
                    "the training data is empty: it ended before the first batch."
                ) from error
            raise DataError(
                f"the training data ended after batch {self.feed.position}, in the middle of an "
                f"epoch of {self.feed.batches_per_epoch} batches.\n"
                "Each epoch must have as many batches as the first epoch.\n"
                "Check the pipeline for operations that drop records randomly."
            ) from error
        self._warn_of_nan(begin, metrics)
        has_counts = records is not None and self.feed.records is not None
        metrics.n_records = (self.feed.records or 0) - (records or 0) if has_counts else None
        metrics.means = metrics.batches[-1] if metrics.batches else {}
        if self._mean_metrics is not None:
            metrics.means = self._mean_metrics(metrics.means, metrics.n_records)
        self.callbacks.workload_end(self.feed.position, metrics.means)
        return metrics

    def train_batches(self, limit: int, interrupted: Callable[[], bool]) -> list[dict[str, float]]:
        """Train 1 to `limit` batches and return the metrics of each.

        `interrupted` was checked before the first of them.
        """
        raise NotImplementedError

    def count_batches(self, outputs: Mapping[str, Any], count: int) -> None:
        """Record that batches were trained on, and log their records."""
        self.feed.advance(count, outputs)
        if self._after_first_batch is not None:
            self._after_first_batch()
            self._after_first_batch = None
        if self.ledger is not None:
            values = {name: np.asarray(value) for name, value in outputs.items()}
            self.feed.log_records(self.ledger, values, count)

    def digest_batches(self, digests: StepDigests, inputs: Any, count: int) -> None:
        """Record the digests that are due for batches of the block not counted yet."""
        first = self.feed.position + 1
        due = [index for index in range(count) if digests.is_recorded(first + index)]
        if due:
            batches = self.feed.identify_batches(inputs, due)
            for index, (record_ids, content) in zip(due, batches, strict=True):
                digests.log(first + index, record_ids, content)

    def list_scalars(self, logs: Any) -> dict[str, float]:
        """Return a batch's metrics as numbers. Warn once about values that are not numbers."""
        numbers: dict[str, float] = {}
        for name, value in (logs or {}).items():
            array = np.asarray(value)
            if array.ndim == 0:
                numbers[name] = float(array)
            else:
                self.leave_out(name, array.shape)
        return numbers

    def leave_out(self, name: str, shape: tuple[int, ...]) -> None:
        """Warn once that a metric is not reported."""
        if name not in self._left_out:
            self._left_out.add(name)
            _logger.warning(
                "metric %r is not reported: its shape is %s, but it must be one number", name, shape
            )

    def _warn_of_nan(self, begin: int, metrics: UnitMetrics) -> None:
        for offset, batch in enumerate(metrics.batches):
            finite = math.isfinite(batch.get("loss", 0.0))
            if self._loss_is_finite and not finite:
                if self.callbacks.terminates_on_nan:
                    raise NotANumberError(
                        f"the loss is {batch['loss']} at batch {begin + offset + 1}, and "
                        "keras.callbacks.TerminateOnNaN ends training there.\n"
                        "The latest checkpoint is from an earlier batch. Lower the learning rate, "
                        "clip the gradients, or look for NaN in the data."
                    )
                _logger.warning(
                    "the loss is %s at batch %d; training continues. Lower the learning rate, clip "
                    "the gradients, or look for NaN in the data",
                    batch["loss"],
                    begin + offset + 1,
                )
            self._loss_is_finite = finite


class FastUnits(Units):
    """Many batches in one graph execution."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._pace: int | None = None
        self._calls = 0

    def train_batches(self, limit: int, interrupted: Callable[[], bool]) -> list[dict[str, float]]:
        """Train as many batches as fit into about half a second."""
        begin, pace = self.feed.position, self._pace or _FIRST_CALL_BATCHES
        target = begin + min(limit, pace)
        rows: list[dict[str, float]] = []
        seconds = 0.0
        while self.feed.position < target:
            inputs, count = self.feed.next_block(target - self.feed.position)
            started = time.perf_counter()
            outputs = self.steps.run_many(inputs, count)
            self.steps.settle()
            seconds += time.perf_counter() - started
            if self.digests is not None:
                self.digest_batches(self.digests, inputs, count)
            self.count_batches(outputs, count)
            rows += self._make_rows(outputs, count)
        self._calls += 1
        # Communication with other workers is useless if the next stop is nearer than the pace. The
        # condition is the same on all workers.
        if target - begin == pace or self._calls % _CALLS_BETWEEN_POLLS == 0:
            seconds = self.slowest(seconds)
            # The first call traces and compiles, so its duration does not predict later calls.
            batch_s = max(seconds / (target - begin), 1e-6) if self._pace else _FIRST_GUESS_S
            self._pace = max(1, int(_MAX_CALL_S / batch_s))
        self.callbacks.batches_done(begin, target)
        return rows

    def _make_rows(
        self, outputs: Mapping[str, npt.NDArray[Any]], count: int
    ) -> list[dict[str, float]]:
        columns: dict[str, list[float]] = {}
        for name, values in outputs.items():
            if name.startswith(_PRIVATE):
                continue
            if values.ndim == 1:
                columns[name] = values.astype(np.float64).tolist()
            else:
                self.leave_out(name, values.shape[1:])
        if not columns:
            return [{} for _ in range(count)]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class SingleUnits(Units):
    """One batch per call of the traced step, or of ``train_step`` if the model is eager."""

    def train_batches(self, limit: int, interrupted: Callable[[], bool]) -> list[dict[str, float]]:
        """Train one block, batch by batch, with the batch-level hooks around each."""
        inputs, count = self.feed.next_block(limit)
        feed, callbacks, run_one = self.feed, self.callbacks, self.steps.run_one
        collected = []
        for index in range(count):
            callbacks.batch_begin(feed.position)
            if self.digests is not None:
                self.steps.settle()
                ((ids, arrays),) = feed.identify_batches(inputs, range(1))
                self.digests.log(feed.position + 1, ids, arrays)
            outputs = run_one(inputs, index)
            self.count_batches(outputs, 1)
            logs = {n: value for n, value in outputs.items() if not n.startswith(_PRIVATE)}
            collected.append(logs)
            callbacks.batch_end(feed.position, logs)
            if index + 1 < count and interrupted():
                break
        self.steps.settle()
        # Reading a value waits for its step, so values are read after all steps have started.
        return [self.list_scalars(logs) for logs in collected]
