"""The validation loss of a `Trainer` on several workers, without the records that it repeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accelerate.utils import find_batch_size, recursively_apply

from detcore_torch._group import broadcast_from_chief

if TYPE_CHECKING:
    from transformers import Trainer


def exact_prediction_step(trainer: Trainer) -> Callable[..., Any]:
    """Return the ``prediction_step`` of a trainer, with losses that repeat no record.

    Accelerate fills the last batches of a validation with records from the beginning of the data,
    so that all workers have batches of one size. The trainer removes these from the predictions,
    but not from the loss. A loss is the mean over a worker's batch; the trainer counts batches by
    their records.
    """
    original, settings = trainer.prediction_step, trainer.args

    def prediction_step(model: Any, inputs: Any, *args: Any, **more: Any) -> Any:
        size = find_batch_size(inputs)
        kept = _own_records(trainer, size)
        # The trainer may remove values from its inputs.
        own = _first_records(inputs, kept, size) if 0 < kept < size else None
        averages = settings.average_tokens_across_devices
        # Else the loss of a batch would depend on the batches of the other workers.
        settings.average_tokens_across_devices = False
        try:
            loss, logits, labels = original(model, inputs, *args, **more)
            if own is not None and loss is not None:
                loss, _, _ = original(model, own, prediction_loss_only=True)
        finally:
            settings.average_tokens_across_devices = averages
        return loss, logits, labels

    return prediction_step


def share_buffers(trainer: Trainer) -> None:
    """Give all workers the buffers of the chief, which are those in a checkpoint.

    ``DistributedDataParallel`` does so before each batch of training, but not in a validation.
    """
    if trainer.args.world_size > 1:
        broadcast_from_chief(trainer.model.buffers())


def _own_records(trainer: Trainer, size: int) -> int:
    """Return how many records of this worker's batch are no repetitions."""
    state = trainer.accelerator.gradient_state
    if not state.end_of_dataloader or state.remainder <= 0:
        return size
    before = size * int(trainer.args.process_index)
    return min(max(int(state.remainder) - before, 0), size)


def _first_records(inputs: Any, count: int, size: int) -> Any:
    def cut(value: Any) -> Any:
        return value[:count] if value.ndim and len(value) == size else value

    return recursively_apply(cut, dict(inputs))
