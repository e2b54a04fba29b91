"""Requests of gcsfs, tried again as detcore does it."""

from __future__ import annotations

import functools
from typing import Any

from gcsfs.core import GCSFileSystem

from detcore.storage import RetryPolicy, retry_async

__all__ = ["RetryingFileSystem"]


class RetryingFileSystem(GCSFileSystem):  # type: ignore[misc]  # gcsfs has no types
    """A GCSFileSystem with a deadline and pauses of its own.

    gcsfs draws its pauses from Python's global generator, from which training draws, too: after a
    save that met a busy server, an exact resume would not be exact.
    """

    def __init__(self, *args: Any, policy: RetryPolicy, **options: Any) -> None:
        """Remember how long to try."""
        super().__init__(*args, **options)
        self._policy = policy

    async def _request(self, *args: Any, **options: Any) -> Any:
        # What gcsfs wraps with its own way of trying again.
        once = functools.partial(GCSFileSystem._request.__wrapped__, self, *args, **options)
        return await retry_async(once, self._policy)
