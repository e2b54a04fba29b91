"""Code that the plugins for TensorFlow share: cached datasets, and scripts that train natively.

It imports no TensorFlow. Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_tensorflow._caching import CachingContext
    from detcore_tensorflow._dataset_cache import (
        CachedRecords,
        CacheKey,
        DatasetCache,
        key_order,
        with_key_order,
    )
    from detcore_tensorflow._native import NativeStart, start_native

__version__ = "0.1.0"

__all__ = [
    "CacheKey",
    "CachedRecords",
    "CachingContext",
    "DatasetCache",
    "NativeStart",
    "__version__",
    "key_order",
    "start_native",
    "with_key_order",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_caching": "CachingContext",
        "_dataset_cache": "CacheKey CachedRecords DatasetCache key_order with_key_order",
        "_native": "NativeStart start_native",
    },
)
