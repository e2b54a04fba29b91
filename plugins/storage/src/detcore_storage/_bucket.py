"""Share code between the object stores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from detcore.errors import StorageError


@contextlib.contextmanager
def bucket_needed(url: str, bucket: str) -> Iterator[None]:
    """Turn a store's "not found" into an error about the bucket, for writes."""
    try:
        yield
    except FileNotFoundError as error:
        if error.filename is not None:  # a local file to upload
            raise
        raise StorageError(
            f"the bucket {bucket!r} of {url} does not exist, or these credentials may not see it.\n"
            "It is not made for you. Make it, or correct the bucket and endpoint_url."
        ) from error
