"""A server in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from running_server import RunningServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    home = tmp_path / "home"
    home.mkdir()
    with RunningServer(home) as running:
        yield running


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for many tests; each brings its own users and names."""
    with RunningServer(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server for a module, with no records but its own."""
    with RunningServer(tmp_path_factory.mktemp("home")) as running:
        yield running
