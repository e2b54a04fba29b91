"""Provide a resumable order of data, data sources, the ledger, and step digests.

Pure; requires only NumPy. The names that verify ledgers are in the distribution detcore-replay,
those of cached datasets in detcore-tensorflow, and `IteratorSource` in detcore-torch; they are also
found here.
"""

from typing import TYPE_CHECKING

from detcore.contract.trial import IdKind
from detcore.data._digests import StepDigests
from detcore.data._ledger import FrameKind, LedgerHeader, LedgerWriter
from detcore.data._order import ShuffledOrder
from detcore.data._sampler import DataPosition, IndexSampler, shard_range
from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.contract.data import DataSource

__all__ = [
    "DataPosition",
    "DataSource",
    "FrameKind",
    "IdKind",
    "IndexSampler",
    "LedgerHeader",
    "LedgerWriter",
    "ShuffledOrder",
    "StepDigests",
    "shard_range",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "detcore.contract.data": "DataSource",
        "detcore_tensorflow": "CacheKey CachedRecords DatasetCache key_order with_key_order",
        "detcore_replay": "EpochReport Frame LedgerReport scan_frames verify_ledger",
        "detcore_torch": "IteratorSource",
    },
)
