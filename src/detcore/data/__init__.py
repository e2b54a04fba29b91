"""Provide a resumable order of data, data sources, the ledger, step digests, and a cache.

Pure; requires only NumPy. Workers seldom need an `IteratorSource`, so it is imported on first use.
The names that verify ledgers are in the distribution detcore-replay, and also found here.
"""

from typing import TYPE_CHECKING

from detcore.data._dataset_cache import (
    CachedRecords,
    CacheKey,
    DatasetCache,
    key_order,
    with_key_order,
)
from detcore.data._digests import StepDigests
from detcore.data._ledger import FrameKind, IdKind, LedgerHeader, LedgerWriter
from detcore.data._order import ShuffledOrder
from detcore.data._sampler import DataPosition, IndexSampler, shard_range
from detcore.data._source import DataSource
from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.data._iterator_source import IteratorSource

__all__ = [
    "CacheKey",
    "CachedRecords",
    "DataPosition",
    "DataSource",
    "DatasetCache",
    "FrameKind",
    "IdKind",
    "IndexSampler",
    "IteratorSource",
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
        "_iterator_source": "IteratorSource",
        "detcore_replay": "EpochReport Frame LedgerReport scan_frames verify_ledger",
    },
)
