"""``python -m detcore_ray.driver_process.driver FD``: join a cluster, and run trials.

If the runner is killed, this process lives until the workers have exited.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading

from detcore.errors import DetcoreError
from detcore_ray.driver_process.cluster import Cluster
from detcore_ray.driver_process.ray_trial import run_trial
from detcore_ray.messages import receive_descriptors
from detcore_ray.ray_settings import RaySettings


def main(control_fd: int) -> int:
    """Run trials until the runner closes the socket or exits."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    settings = RaySettings.model_validate_json(sys.stdin.read())
    control = socket.socket(fileno=control_fd)
    cluster: Cluster | None = None
    trials: list[threading.Thread] = []
    try:
        cluster = Cluster(settings)
        outcome: Cluster | str = cluster
    except DetcoreError as error:
        outcome = str(error)
    while (descriptors := receive_descriptors(control)) is not None:
        trial = threading.Thread(target=run_trial, args=(outcome, descriptors))
        trial.start()
        trials = [thread for thread in (*trials, trial) if thread.is_alive()]
    for trial in trials:
        trial.join()
    if cluster is not None:
        cluster.leave_cluster()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
