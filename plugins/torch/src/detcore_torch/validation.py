"""Validation: each worker evaluates its batches, and the results are combined once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detcore.errors import InvalidExperimentError, MetricError, describe
from detcore.metrics import MetricReducer as BatchReducer
from detcore.trial import ValidationResult
from detcore_torch.callbacks import Callbacks, match_arguments
from detcore_torch.data.data_loader import BatchStream, DataLoader
from detcore_torch.libraries import torch
from detcore_torch.metric_reducers import Reducer, as_number, batch_reducer, reduce_over_workers
from detcore_torch.pytorch_trial import PyTorchTrial

if TYPE_CHECKING:
    from detcore_torch.pytorch_context import PyTorchTrialContext


class Evaluation:
    """The validation data and its evaluation.

    Rank ``i % size`` evaluates batch i, so shares may be uneven or empty.

    Args:
        trial: The user's trial.
        context: Its context.
        loader: The validation data.
        callbacks: The user's callbacks.

    Raises:
        InvalidExperimentError: If the trial does not define exactly one evaluation method.
    """

    def __init__(
        self,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        loader: DataLoader,
        callbacks: Callbacks,
    ) -> None:
        self._trial = trial
        self._context = context
        self._callbacks = callbacks
        self._is_whole = _evaluates_whole(trial)
        self._reducers: Reducer | Mapping[str, Reducer] = {}
        if not self._is_whole:
            self._reducers = _check_reducers(trial.evaluation_reducer())
        place = context.distributed
        rank, world_size = (0, 1) if self._is_whole else (place.rank, place.size)
        seed = context.get_trial_seed()
        order = loader.order(seed=seed, rank=rank, world_size=world_size)
        self.num_batches = 1 if context.test_mode else order.batches_per_epoch
        self._loader = loader
        self._stream = BatchStream(
            loader,
            order,
            seed=seed,
            rank=rank,
            world_size=world_size,
            stop=len(range(rank, self.num_batches, world_size)),
        )

    def run(self) -> ValidationResult:
        """Evaluate the models; the result is the same on all workers."""
        self._callbacks.call_hook("on_validation_start")
        self._callbacks.call_hook("on_validation_step_start")
        custom = [reducer for reducer in self._context.reducers if reducer.for_validation]
        for reducer in custom:
            reducer.reducer.reset()
        with self._context.evaluation_mode():
            self._callbacks.call_hook("on_validation_epoch_start")
            result = self._evaluate_whole() if self._is_whole else self._evaluate_batches()
        metrics = {**result.metrics, **reduce_over_workers(custom, self._context.distributed)}
        for reducer in self._context.reducers:
            reducer.reducer.reset()
        self._callbacks.call_hook("on_validation_step_end", metrics)
        self._callbacks.call_hook("on_validation_end", metrics)
        return ValidationResult(metrics, result.n_records)

    def _evaluate_batches(self) -> ValidationResult:
        place = self._context.distributed
        reducers: dict[str, BatchReducer] = {}
        states: dict[str, Any] = {}
        outputs: list[Any] = []
        num_records = 0
        evaluate = match_arguments(self._trial.evaluate_batch, "batch", "batch_idx")
        for index, batch in enumerate(self._stream):
            outcome = evaluate(self._context.move_batch(batch.data), index)
            outputs.append(outcome)
            num_records += len(batch.records)
            for name, value in _check_mapping(outcome).items():
                kind = self._find_reducer(name)
                reducer = reducers.setdefault(name, batch_reducer(kind))
                number: Any = as_number(name, value)
                if kind is Reducer.AVG:
                    number = {"values": number, "weights": len(batch.records)}
                states[name] = reducer.accumulate(number)
        if self._callbacks.overrides("on_validation_epoch_end"):
            outputs = [_to_arrays(output) for output in outputs]
        self._callbacks.call_hook("on_validation_epoch_end", outputs)
        everywhere = place.allgather((states, num_records))
        names = dict.fromkeys(name for outcome, _ in everywhere for name in outcome)
        metrics = {
            name: reducers.get(name, batch_reducer(self._find_reducer(name))).cross_slot_reduce(
                [outcome[name] for outcome, _ in everywhere if name in outcome]
            )
            for name in names
        }
        return ValidationResult(metrics, sum(count for _, count in everywhere))

    def _evaluate_whole(self) -> ValidationResult:
        """Evaluate all of the data on the chief."""
        place = self._context.distributed
        outcome: tuple[dict[str, float], int] | None = None
        if place.rank == 0:
            counted = EvaluationLoader(self._loader, self._stream, self.num_batches)
            evaluate = match_arguments(self._trial.evaluate_full_dataset, "data_loader")
            metrics = _check_mapping(evaluate(counted))
            numbers = {name: as_number(name, value) for name, value in metrics.items()}
            outcome = numbers, counted.num_records
        self._callbacks.call_hook("on_validation_epoch_end", [])
        outcome = place.broadcast(outcome)
        assert outcome is not None  # the chief's
        return ValidationResult(*outcome)

    def _find_reducer(self, name: str) -> Reducer:
        if isinstance(self._reducers, Reducer):
            return self._reducers
        if name not in self._reducers:
            raise MetricError(
                f"evaluate_batch returned the metric {name!r}, but evaluation_reducer has "
                f"reducers only for {', '.join(sorted(self._reducers)) or 'no metric'}.\n"
                "Add a reducer for each metric, or return one reducer for all metrics."
            )
        return self._reducers[name]


class EvaluationLoader(torch.utils.data.DataLoader):  # type: ignore[misc]  # untyped
    """All batches of the validation data, for ``evaluate_full_dataset``.

    Args:
        loader: Description of the batches, whose attributes this loader has.
        stream: The batches.
        num_batches: Their number.

    Attributes:
        num_records: Records in the batches of the last iteration so far.
    """

    def __init__(self, loader: DataLoader, stream: BatchStream, num_batches: int) -> None:
        super().__init__(
            loader.dataset, batch_size=loader.batch_size or 1, collate_fn=loader.collate_fn
        )
        self._stream = stream
        self._num_batches = num_batches
        self.num_records = 0

    def __len__(self) -> int:
        """Return the number of batches."""
        return self._num_batches

    def __iter__(self) -> Any:
        """Yield the batches, not moved to the device."""
        self.num_records = 0
        for batch in self._stream:
            self.num_records += len(batch.records)
            yield batch.data


def _to_arrays(output: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of ``evaluate_batch`` with arrays in place of tensors."""
    return {
        name: value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
        for name, value in output.items()
    }


def _check_mapping(found: Any) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise MetricError(
            f"the evaluation returned {describe(found)}.\n"
            "Return metrics by name, such as {'validation_loss': loss}."
        )
    return found


def _evaluates_whole(trial: PyTorchTrial) -> bool:
    kind = type(trial)
    by_batch = kind.evaluate_batch is not PyTorchTrial.evaluate_batch
    as_whole = kind.evaluate_full_dataset is not PyTorchTrial.evaluate_full_dataset
    if by_batch == as_whole:
        raise InvalidExperimentError(
            f"{kind.__name__} has {'both' if by_batch else 'neither'} of evaluate_batch and "
            "evaluate_full_dataset.\n"
            "Define one of them. Use evaluate_batch if metrics are means or sums over batches."
        )
    return as_whole


def _check_reducers(given: Any) -> Reducer | Mapping[str, Reducer]:
    values = list(given.values()) if isinstance(given, Mapping) else [given]
    if not all(isinstance(value, Reducer) for value in values):
        raise InvalidExperimentError(
            f"evaluation_reducer returned {describe(given)}.\n"
            "Return a detcore_torch.Reducer, or reducers by metric name. For other reductions, use "
            "context.wrap_reducer."
        )
    checked: Reducer | Mapping[str, Reducer] = given
    return checked
