"""Determine the length of an epoch if the workers' shards differ."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from detcore.errors import DataError

if TYPE_CHECKING:
    from detcore.distributed import DistributedContext


_logger = logging.getLogger("detcore.estimator")


def agreed_epoch(
    distributed: DistributedContext, own_length: Callable[[], int | None]
) -> int | None:
    """Return the batches of an epoch, the same on all workers.

    It is the longest of all workers' passes over their shards: after that many steps every record
    has been trained on. Workers with a shorter one begin their next pass in the meantime.

    Args:
        distributed: The workers; all call this together.
        own_length: Returns the batches of this worker's pass, None if that is unknown.

    Returns:
        The number, or None if a worker does not know its own.

    Raises:
        DataError: If a worker has no data; on all of them.
    """
    if distributed.get_size() == 1:
        return own_length()
    length: int | None = None
    problem: DataError | None = None
    try:
        length = own_length()
    except DataError as error:
        problem = error
    answers = distributed.allgather((length, None if problem is None else str(problem)))
    empty = [rank for rank, (_, told) in enumerate(answers) if told is not None]
    if empty:
        raise DataError(
            f"{len(empty)} of {len(answers)} workers cannot train: rank {empty[0]} says: "
            f"{answers[empty[0]][1]}\n"
            "Workers read records in turns, so there must be at least one batch for each.\n"
            "Train with fewer workers, or with a smaller batch."
        ) from problem
    lengths = [number for number, _ in answers if number is not None]
    if len(lengths) < len(answers):
        return None
    if distributed.get_rank() == 0 and len(set(lengths)) > 1:
        _logger.info(
            "the workers' shards have %d to %d batches: an epoch has %d, and workers with fewer "
            "begin their next pass earlier",
            min(lengths),
            max(lengths),
            max(lengths),
        )
    return max(lengths)
