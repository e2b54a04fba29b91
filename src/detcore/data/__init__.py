"""Provide a resumable order of data, data sources, the ledger, and step digests.

Pure; requires only NumPy.
"""

from typing import TYPE_CHECKING

from detcore.contract.data import IdKind
from detcore.data._digests import StepDigests
from detcore.data._ledger import FrameKind, LedgerHeader, LedgerWriter
from detcore.data._order import ShuffledOrder
from detcore.data._sampler import IndexSampler, shard_range
from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.contract.data import DataSource
    from detcore.data._dataset_cache import (
        CachedRecords,
        CacheKey,
        CachingContext,
        DatasetCache,
        key_order,
        with_key_order,
    )

__all__ = [
    "CacheKey",
    "CachedRecords",
    "CachingContext",
    "DataSource",
    "DatasetCache",
    "FrameKind",
    "IdKind",
    "IndexSampler",
    "LedgerHeader",
    "LedgerWriter",
    "ShuffledOrder",
    "StepDigests",
    "key_order",
    "shard_range",
    "with_key_order",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "detcore.contract.data": "DataSource",
        "_dataset_cache": (
            "CacheKey CachedRecords CachingContext DatasetCache key_order with_key_order"
        ),
    },
)
