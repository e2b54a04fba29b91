"""Experiments of the toy framework, run as a person runs them: through the command line."""

from __future__ import annotations

import signal
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
            process.send_signal(signal.SIGKILL)
            process.communicate()
