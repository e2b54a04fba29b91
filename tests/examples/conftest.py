"""A `detcore` command for each test of the examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_command import Detcore


@pytest.fixture
def detcore(tmp_path: Path) -> Iterator[Detcore]:
    command = Detcore(tmp_path)
    yield command
    for process in command.started:
        if process.poll() is None:
            process.kill()
            process.communicate()
