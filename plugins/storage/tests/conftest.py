"""A server for an object store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from storage_servers import seaweedfs


@pytest.fixture(scope="session")
def weed_url() -> Iterator[str]:
    with seaweedfs() as url:
        yield url
