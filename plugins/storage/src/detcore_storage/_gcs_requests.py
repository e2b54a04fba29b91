"""Retry requests of gcsfs with detcore's policy."""

from __future__ import annotations

import functools
from typing import Any

from gcsfs.core import GCSFileSystem

from detcore_storage._retries import RetryPolicy, retry_async


class RetryingFileSystem(GCSFileSystem):  # type: ignore[misc]  # gcsfs has no types
    """A GCSFileSystem with detcore's deadlines and pauses.

    gcsfs draws its pauses from Python's global generator, which training uses as well: after a save
    that met a busy server, a resume would not be exact.
    """

    def __init__(self, *args: Any, policy: RetryPolicy, **options: Any) -> None:
        """Store the retry policy."""
        super().__init__(*args, **options)
        self._policy = policy

    async def _request(self, *args: Any, **options: Any) -> Any:
        # The function inside gcsfs's own retry wrapper.
        once = functools.partial(GCSFileSystem._request.__wrapped__, self, *args, **options)
        return await retry_async(once, self._policy)
