"""One cluster for all tests."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from ray_nodes import RayNodes
from ray_runs import BATCH, RayRuns, read_state
from toy_command import MODEL_DIR, Detcore


@pytest.fixture(scope="session")
def nodes() -> Iterator[RayNodes]:
    """A head node, and three nodes with room for two workers each."""
    cluster = RayNodes()
    try:
        for name in ("a", "b", "c"):
            cluster.add(name)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def expect(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, Any]]:
    """Return a function that trains without interruption and returns the final state."""

    @functools.cache
    def run(slots: int) -> dict[str, Any]:
        with Detcore(tmp_path_factory.mktemp("expected")) as detcore:
            config = detcore.config(hyperparameters=BATCH, resources={"slots_per_trial": slots})
            finished = detcore("run", config, MODEL_DIR, "--json")
            assert finished.code == 0, finished.output
            uuid = finished.summary["trials"][0]["latest_checkpoint"]
            return read_state(detcore.home / "checkpoints" / uuid)

    return run


@pytest.fixture
def detcore(nodes: RayNodes, tmp_path: Path) -> Iterator[RayRuns]:
    """The `detcore` command with experiments on the cluster."""
    with RayRuns(tmp_path, nodes) as command:
        yield command


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start all processes as users do: a forked runner does not notice that a node dies."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.cold)
