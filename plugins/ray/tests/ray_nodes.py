"""A real Ray cluster on this machine: each node is a separate raylet with its own workers."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from detcore.environment import change_environment

__all__ = ["RayNodes"]

_SMALL = {
    "include_dashboard": False,
    "include_log_monitor": False,
    "object_store_memory": 80 << 20,
}
# A dead node is detected within 3 instead of 15 seconds. A slow node on a busy machine is not
# reported as dead.
_HEALTH = {
    "health_check_initial_delay_ms": 10_000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 3,
}


class RayNodes:
    """A head node without room for trials, and nodes with room for some."""

    def __init__(self) -> None:
        # Nodes start slowly on a busy machine.
        change_environment({"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"})
        # Short: paths of sockets have to fit into 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="ray-"))
        # Ray writes the cluster's address here, and requires that the directory exists.
        Path(tempfile.gettempdir(), "ray").mkdir(exist_ok=True)
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                **_SMALL,
                "num_cpus": 0,
                "_system_config": _HEALTH,
                "temp_dir": str(self._folder),
            },
        )
        self._nodes: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """Value for ``launcher.address``."""
        return str(self._cluster.address)

    @property
    def logs(self) -> Path:
        """Directory of all files that Ray writes."""
        return self._folder

    def add(self, name: str, *, cpus: int = 2, **options: Any) -> None:
        """Start a node, with options of `ray.cluster_utils.Cluster.add_node`."""
        self._nodes[name] = self._cluster.add_node(num_cpus=cpus, **options, **_SMALL)

    @contextlib.contextmanager
    def elsewhere(self, hidden: Path, *, address: str, resource: str) -> Iterator[None]:
        """Run a node with a separate address, which sees an empty directory in place of `hidden`.

        Args:
            hidden: The directory whose files the node does not see.
            address: Address of the node.
            resource: Name of a resource that only this node has.
        """
        node = [sys.executable, Path(__file__).with_name("far_node.py"), self.address, address]
        start = shlex.join([*map(str, node), resource])
        hidden.mkdir(mode=0o700, exist_ok=True)
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c",
             f"mount -t tmpfs none {shlex.quote(str(hidden))} && exec {start}"],
            start_new_session=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def ray_id(self, name: str) -> str:
        """Return Ray's id of a node."""
        return str(self._nodes[name].node_id)

    def of_process(self, pid: int) -> str:
        """Return the name of the node on which a process runs."""
        raylets = {
            node.all_processes["raylet"][0].process.pid: name for name, node in self._nodes.items()
        }
        while pid > 1:
            if pid in raylets:
                return raylets[pid]
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
            pid = int(stat.rpartition(")")[2].split()[1])
        raise AssertionError("the process does not run on a node")

    def names(self) -> list[str]:
        """Return the names of the live nodes."""
        return list(self._nodes)

    def kill(self, name: str) -> None:
        """Kill a node's processes with SIGKILL, the raylet first, as in a power cut."""
        node = self._nodes.pop(name)
        raylet = node.all_processes["raylet"][0].process.pid
        children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text(encoding="ascii")
        for pid in (raylet, *map(int, children.split())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)

    def wait_until_noticed(self) -> None:
        """Wait until the cluster has detected the dead nodes."""
        self._cluster.wait_for_nodes(timeout=60)

    def close(self) -> None:
        """Stop all nodes."""
        with contextlib.suppress(Exception):
            self._cluster.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)
