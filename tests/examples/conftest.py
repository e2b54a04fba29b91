"""A `detcore` command for each test of the examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_command import Detcore


@pytest.fixture
def detcore(tmp_path: Path) -> Iterator[Detcore]:
    with Detcore(tmp_path) as command:
        yield command
