"""Make a feed from the result of ``build_training_data_loader``, and save its position."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.data import IndexSampler
from detcore.errors import CheckFailedError, InvalidCheckpointError
from detcore_keras.data.dataset_feed import DatasetFeed, check_dataset
from detcore_keras.data.feed import (
    ArrayFeed,
    Feed,
    SequenceFeed,
    as_arrays,
    as_sequence,
    make_loader,
)
from detcore_keras.frameworks import tf

if TYPE_CHECKING:
    from detcore_keras.keras_context import TFKerasTrialContext


POSITION_FILE = "keras-position.json"
_POSITION_FIELDS = (
    "data",
    "validation",
    "untouched",
    "stop_requested",
    "is_finished",
    "trainable",
)


def make_feed(
    data: Any,
    *,
    context: TFKerasTrialContext,
    batch_size: int,
    weigh_dataset: Callable[[Any], Any] | None,
) -> Feed:
    """Return the feed for training data of any supported kind.

    Args:
        data: Result of the trial.
        context: The trial's context.
        batch_size: Records per batch and worker, for arrays.
        weigh_dataset: Adds class weights inside a ``tf.data`` pipeline, if the step cannot.

    Raises:
        InvalidDataTypeError: If the kind is not supported.
        InvalidExperimentError: If a dataset was not wrapped.
        CheckFailedError: If a batch is larger than the data.
        DataError: If there is no data.
    """
    if isinstance(data, tf.data.Dataset):
        check_dataset(data, context.wrapped_datasets, "training")
        if weigh_dataset is not None:
            data = data.map(lambda *batch: weigh_dataset(batch))
        return DatasetFeed(data, with_ledger=context.ledger is not None)
    sequence = as_sequence(data)
    if sequence is not None:
        loader = make_loader(data, sequence, context.fit_options, context.get_trial_seed())
        sampler = _sampler(context, len(sequence), 1)
        return SequenceFeed(sequence.sequence, sampler, loader)
    arrays = as_arrays(data, "training")
    num_records = len(tf.nest.flatten(arrays)[0])
    if batch_size > num_records:
        raise CheckFailedError(
            f"a batch of {batch_size} records is larger than the training data, which has "
            f"{num_records}.\n"
            "Lower hyperparameters.global_batch_size, or give more data."
        )
    return ArrayFeed(arrays, _sampler(context, num_records, batch_size))


def _sampler(context: TFKerasTrialContext, num_records: int, batch_size: int) -> IndexSampler:
    return IndexSampler(
        num_records,
        batch_size,
        shuffle=context.fit_options.shuffle,
        seed=context.get_trial_seed(),
        rank=context.distributed.get_rank(),
        world_size=context.distributed.get_size(),
    )


def write_position(path: Path, value: Mapping[str, Any]) -> None:
    """Write the position in the data, and other small values, of a checkpoint."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_position(path: Path) -> dict[str, Any]:
    """Read a file of `write_position`.

    Raises:
        InvalidCheckpointError: If it is missing or damaged.
    """
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _ = [value[name] for name in _POSITION_FIELDS]
    except FileNotFoundError as error:
        raise InvalidCheckpointError(
            f"the checkpoint has no {path.name}: it was not written by a TFKerasTrial of this "
            "program, so training cannot resume from it.\n"
            "Start a new experiment, or load its weights in build_model."
        ) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidCheckpointError(f"{path} is damaged: {error!r}") from error
    return value
