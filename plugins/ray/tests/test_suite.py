"""The launcher contract, on a cluster of four nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from ray_nodes import RayNodes

from detcore.launch import Launcher
from detcore_ray import RayLauncher
from detcore_testing import LauncherSuite


class SharedLauncher(RayLauncher):
    """A launcher that stays open for the next test, because joining a cluster takes a second."""

    def close(self) -> None:
        """Keep the cluster connection."""

    def end(self) -> None:
        super().close()


@pytest.fixture(scope="module")
def shared_launcher(nodes: RayNodes) -> Iterator[SharedLauncher]:
    launcher = SharedLauncher(nodes.address, cpus_per_slot=0.5)
    yield launcher
    launcher.end()


@pytest.mark.soak
class TestRayLauncher(LauncherSuite):
    """All clauses, a tenth on each commit, because each clause starts actors that import Ray.

    The nodes are processes of this machine, and so are the workers.
    """

    @pytest.fixture(autouse=True)
    def _use_cluster(
        self, nodes: RayNodes, shared_launcher: SharedLauncher, request: pytest.FixtureRequest
    ) -> None:
        self._address = nodes.address
        self._shared_launcher = shared_launcher
        self._process = os.getpid()
        self._closes = request.node.name == "test_close_releases_resources"

    def make_launcher(self) -> Launcher:
        if self._closes or os.getpid() != self._process:
            return RayLauncher(self._address, cpus_per_slot=0.5)
        return self._shared_launcher
