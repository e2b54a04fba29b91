"""The launcher keeps the contract of launchers, on a cluster of four nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from ray_nodes import RayNodes

from detcore.launch import Launcher
from detcore_ray import RayLauncher
from detcore_testing import LauncherSuite


class Kept(RayLauncher):
    """A launcher that stays for the next test: joining a cluster takes a second."""

    def close(self) -> None:
        """Leave it open."""

    def end(self) -> None:
        super().close()


@pytest.fixture(scope="module")
def kept(nodes: RayNodes) -> Iterator[Kept]:
    launcher = Kept(nodes.address, cpus_per_slot=0.5)
    yield launcher
    launcher.end()


@pytest.mark.soak
class TestRayLauncher(LauncherSuite):
    """All clauses, a tenth on each commit: each starts actors, which import Ray for seconds.

    The nodes are processes of this machine, and so are the workers.
    """

    @pytest.fixture(autouse=True)
    def _on_the_cluster(self, nodes: RayNodes, kept: Kept, request: pytest.FixtureRequest) -> None:
        self._address = nodes.address
        self._kept = kept
        self._process = os.getpid()
        self._closes = request.node.name == "test_close_releases_resources"

    def make_launcher(self) -> Launcher:
        if self._closes or os.getpid() != self._process:
            return RayLauncher(self._address, cpus_per_slot=0.5)
        return self._kept
