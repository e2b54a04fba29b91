"""The resumable order of data, data positions, and the ledger. Pure; needs only NumPy."""

from detcore.data._ledger import LedgerWriter
from detcore.data._ledger_format import IdKind
from detcore.data._order import ShuffledOrder
from detcore.data._sampler import DataPosition, IndexSampler, shard_range
from detcore.data._verify import EpochReport, LedgerReport, verify_ledger

__all__ = [
    "DataPosition",
    "EpochReport",
    "IdKind",
    "IndexSampler",
    "LedgerReport",
    "LedgerWriter",
    "ShuffledOrder",
    "shard_range",
    "verify_ledger",
]
