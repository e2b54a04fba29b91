"""Custom training loops in real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from loop_runs import LoopRuns


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[[str], LoopRuns]]:
    """Make a home and a storage of a name."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(LoopRuns(tmp_path / name))
