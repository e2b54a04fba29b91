"""One cluster for all tests of a process."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from slurm_cluster import SlurmCluster
from slurm_runs import SlurmRuns


@pytest.fixture(scope="session")
def cluster() -> Iterator[SlurmCluster]:
    """Two nodes with eight CPUs each, and commands that find them."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, pytest.MonkeyPatch.context() as on:
        running = SlurmCluster(Path(folder))
        for name, value in running.variables.items():
            on.setenv(name, value)
        try:
            yield running
        finally:
            running.close()


@pytest.fixture
def detcore(cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmRuns]:
    """The `detcore` command with experiments on the cluster."""
    with SlurmRuns(tmp_path, cluster) as command:
        yield command
    cluster.cancel_jobs()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start all processes as users do: runners are killed, and jobs start their own Python."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.cold)
