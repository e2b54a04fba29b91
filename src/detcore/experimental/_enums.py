"""Sort keys of lists, and sort directions."""

from __future__ import annotations

import enum

from detcore.contract.values import ModelOrderBy, ModelSortBy

__all__ = [
    "CheckpointOrderBy",
    "CheckpointSortBy",
    "ModelOrderBy",
    "ModelSortBy",
    "OrderBy",
    "TrialOrderBy",
    "TrialSortBy",
]


class TrialSortBy(enum.IntEnum):
    """Sort key of trials; those without a value come last."""

    UNSPECIFIED = 0
    ID = 1
    START_TIME = 4
    END_TIME = 5
    STATE = 6
    RESTARTS = 12


class CheckpointSortBy(enum.IntEnum):
    """Sort key of checkpoints."""

    UNSPECIFIED = 0
    UUID = 1
    BATCH_NUMBER = 3
    START_TIME = 4
    END_TIME = 5
    SEARCHER_METRIC = 7


# One class under the names that both generations of the API give it.
OrderBy = ModelOrderBy
TrialOrderBy = ModelOrderBy
CheckpointOrderBy = ModelOrderBy
