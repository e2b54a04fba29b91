"""The launcher contract, on a cluster of two nodes."""

from __future__ import annotations

import pytest
from slurm_cluster import SlurmCluster

from detcore.launch import Launcher
from detcore_slurm import SlurmLauncher
from detcore_testing import LauncherSuite


class TestSlurmLauncher(LauncherSuite):
    """All clauses. With a lease, workers end with a killed launching process."""

    timeout_s = 160.0

    @pytest.fixture(autouse=True)
    def _use_cluster(self, cluster: SlurmCluster) -> None:
        pass

    def make_launcher(self) -> Launcher:
        return SlurmLauncher(partition="low", poll_s=0.5, lease_s=4.0)
