"""`detcore launch`, run as a person runs it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_command import Launch


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    command = Launch(tmp_path)
    yield command
    for process in command.started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.communicate()
