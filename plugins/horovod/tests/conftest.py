"""`detcore launch`, run as a person runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_command import Launch


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    with Launch(tmp_path) as command:
        yield command
