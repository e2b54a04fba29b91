"""A node of a running Ray cluster, started by its own process: ADDRESS IP RESOURCE."""

from __future__ import annotations

import sys
import threading

from ray._private.node import Node
from ray._private.parameter import RayParams


def main() -> None:
    """Run the node until this process is killed."""
    address, ip, resource = sys.argv[1:]
    params = RayParams(
        gcs_address=address,
        redis_address=address,
        node_ip_address=ip,
        num_cpus=2,
        num_gpus=0,
        resources={resource: 8},
        object_store_memory=80 << 20,
        include_dashboard=False,
        include_log_monitor=False,
    )
    Node(params, head=False, shutdown_at_exit=True, spawn_reaper=False)
    threading.Event().wait()


if __name__ == "__main__":
    main()
