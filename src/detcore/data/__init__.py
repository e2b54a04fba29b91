"""Provide a resumable order of data, data sources, the ledger, and step digests.

Pure; requires only NumPy.
"""

from typing import TYPE_CHECKING

from detcore.contract.data import IdKind
from detcore.data.index_sampler import IndexSampler, shard_range
from detcore.data.ledger import FrameKind, LedgerHeader, LedgerWriter
from detcore.data.shuffled_order import ShuffledOrder
from detcore.data.step_digests import StepDigests, convert_array, digest_array
from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.contract.data import DataSource
    from detcore.data.dataset_cache import (
        CachedRecords,
        CacheKey,
        CachingContext,
        DatasetCache,
        key_order,
        with_key_order,
    )
    from detcore.data.digest_file import DigestedRun, read_digests
    from detcore.data.frames import Frame, read_header, scan_frames
    from detcore.data.replayed_steps import ResumeComparison, StepDifference, compare_step

__all__ = [
    "CacheKey",
    "CachedRecords",
    "CachingContext",
    "DataSource",
    "DatasetCache",
    "DigestedRun",
    "Frame",
    "FrameKind",
    "IdKind",
    "IndexSampler",
    "LedgerHeader",
    "LedgerWriter",
    "ResumeComparison",
    "ShuffledOrder",
    "StepDifference",
    "StepDigests",
    "compare_step",
    "convert_array",
    "digest_array",
    "key_order",
    "read_digests",
    "read_header",
    "scan_frames",
    "shard_range",
    "with_key_order",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "detcore.contract.data": "DataSource",
        "dataset_cache": (
            "CacheKey CachedRecords CachingContext DatasetCache key_order with_key_order"
        ),
        "digest_file": "DigestedRun read_digests",
        "frames": "Frame read_header scan_frames",
        "replayed_steps": "ResumeComparison StepDifference compare_step",
    },
)
