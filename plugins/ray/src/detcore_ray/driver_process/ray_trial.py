"""Run one trial: its placement group, its actors, and the runner's orders."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import exceptions
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from detcore.errors import DetcoreError, WorkerError
from detcore.launch.nodes import RankPlace, place_ranks
from detcore_ray.driver_process.cluster import Cluster
from detcore_ray.driver_process.lease import Lease, read_remaining_s
from detcore_ray.driver_process.rank_link import RankLink
from detcore_ray.messages import Channel
from detcore_ray.ray_settings import RaySettings
from detcore_ray.worker_node.node_processes import machine_id
from detcore_ray.worker_node.trial_code import pack_code
from detcore_ray.worker_node.worker_actor import RankActor, RemoteStore, StartRequest

_EXIT_TEMPFAIL = 75
_PLACE_POLL_S = 0.2
# A trial that is not placed within this time is reported as waiting.
_PLACEMENT_GRACE_S = 2.0
_WAIT_NOTICE_PERIOD_S = 60.0
_ACTOR_THREADS = 32
_END_TIMEOUT_S = 5.0


def run_trial(cluster: Cluster | str, descriptors: Sequence[int]) -> None:
    """Run a trial until its workers have exited.

    Args:
        cluster: The cluster, or an error message if it could not be joined.
        descriptors: The trial's socket, then descriptors to hold open while workers may run.
    """
    channel = Channel(socket.socket(fileno=descriptors[0]))
    try:
        _Trial(channel, cluster).run()
    finally:
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        channel.close()


class _Canceled(Exception):
    """Raised to end a trial before it has started.

    Attributes:
        code: The exit code to report for its workers.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Trial:
    def __init__(self, channel: Channel, cluster: Cluster | str) -> None:
        self._channel = channel
        self._cluster = cluster
        self._slots = 0
        self._actors: list[Any] = []
        self._links: dict[int, RankLink] = {}
        # Orders for workers that have not started.
        self._early: list[tuple[int, str, Any]] = []
        self._lock = threading.Lock()

    def run(self) -> None:
        messages = self._channel.read_messages()
        request = next(messages, None)
        if request is None:
            return
        self._slots = int(request["slots"])
        if request["kind"] == "check":
            self._check_trial()
            return
        threading.Thread(
            target=self._handle_orders, args=(messages,), name="obey", daemon=True
        ).start()
        try:
            self._run_workers(self._require_cluster(), request)
        except _Canceled as canceled:
            self._report_ended(canceled.code)
        except Exception as error:  # noqa: BLE001  (any error is reported to the runner)
            self._channel.send_message("refused", error=_describe_error(error))
            self._report_ended(1)

    def _require_cluster(self) -> Cluster:
        """Return the cluster.

        Raises:
            WorkerError: If the cluster could not be joined.
        """
        if isinstance(self._cluster, str):
            raise WorkerError(self._cluster)
        return self._cluster

    def _check_trial(self) -> None:
        """Report whether such trials could start, without starting anything."""
        try:
            cluster = self._require_cluster()
            cluster.check_room(self._slots)
        except Exception as error:  # noqa: BLE001  (any error is reported to the runner)
            self._channel.send_message("refused", error=_describe_error(error))
        else:
            self._channel.send_message("accepted")

    def _run_workers(self, cluster: Cluster, request: dict[str, Any]) -> None:
        trial_dir = Path(request["info"]["trial_dir"])
        self._warn_about_checkpoint_dir(cluster, request)
        self._wait_for_earlier(trial_dir)
        group = cluster.create_group(self._slots, f"detcore-{request['job']}")
        try:
            self._wait_until_placed(cluster, group)
            lease = Lease(trial_dir, cluster.settings.lease_s)
            try:
                self._start_workers(cluster, group, request)
            except exceptions.RayActorError as error:
                # A node died during the start. This is treated like a node that dies later.
                self._channel.send_message("started", pids=[0] * self._slots)
                self._channel.send_message(
                    "lost", text=f"a node was lost while the trial started: {error}"
                )
                # A worker may have started on the node, so the lease remains.
                self._end_all()
                self._report_ended(-signal.SIGKILL)
                return
            except BaseException:
                if self._end_all():
                    lease.end()
                raise
            lease.record_processes([self._links[rank].process for rank in range(self._slots)])
            pids = [self._links[rank].process["pid"] for rank in range(self._slots)]
            self._channel.send_message("started", pids=pids)
            self._wait_for_workers(lease)
        finally:
            for actor in self._actors:
                ray.kill(actor)
            cluster.remove_group(group)

    def _end_all(self) -> bool:
        """Kill the workers that have started; return whether all have certainly exited."""
        self._kill_all()
        return all(link.join(_END_TIMEOUT_S) for link in self._links.values())

    def _report_ended(self, code: int) -> None:
        for rank in range(self._slots):
            self._channel.send_message("ended", rank=rank, code=code)

    def _warn_about_checkpoint_dir(self, cluster: Cluster, request: dict[str, Any]) -> None:
        storage = request["info"]["config"].get("checkpoint_storage") or {}
        is_directory = storage.get("type", "directory") in ("directory", "shared_fs")
        if is_directory and cluster.other_machines():
            self._channel.send_message(
                "notice",
                text="checkpoints go to a directory, which all machines of the cluster must share",
            )

    def _wait_for_earlier(self, trial_dir: Path) -> None:
        """Wait until workers of an earlier run of the trial have certainly exited."""
        left_s = read_remaining_s(trial_dir)
        if left_s <= 0:
            return
        self._channel.send_message("waits")
        self._channel.send_message(
            "notice",
            text="the previous runner of this trial was killed, and its workers may still run on "
            f"unreachable nodes; they exit within {left_s:.0f} s",
        )
        deadline = time.monotonic() + left_s
        while time.monotonic() < deadline:
            self._raise_if_canceled()
            time.sleep(_PLACE_POLL_S)

    def _wait_until_placed(self, cluster: Cluster, group: PlacementGroup) -> None:
        started_at, notified_at = time.monotonic(), 0.0
        while not group.wait(timeout_seconds=_PLACE_POLL_S):
            self._raise_if_canceled()
            now = time.monotonic()
            if now - started_at < _PLACEMENT_GRACE_S or now < notified_at + _WAIT_NOTICE_PERIOD_S:
                continue
            self._channel.send_message("notice", text=cluster.explain_wait(self._slots))
            if not notified_at:
                self._channel.send_message("waits")
            notified_at = now
        if notified_at:
            self._channel.send_message(
                "notice", text=f"placed after {time.monotonic() - started_at:.0f} s"
            )

    def _start_workers(
        self, cluster: Cluster, group: PlacementGroup, request: dict[str, Any]
    ) -> None:
        """Create the actors and start their workers.

        Raises:
            WorkerError: If a worker does not start.
        """
        table = placement_group_table(group)["bundles_to_node_id"]
        # Ranks on the same node are consecutive.
        order = [table[index] for index in range(self._slots)]
        bundles = sorted(range(self._slots), key=lambda index: (order.index(order[index]), index))
        nodes = [table[index] for index in bundles]
        places = place_ranks(nodes)
        has_code = not cluster.other_machines() or "working_dir" in cluster.settings.runtime_env
        code = None if has_code else pack_code(Path(request["info"]["model_dir"]))
        self._make_actors(cluster, group, request, bundles, nodes)
        self._raise_if_canceled()
        references = self._launch_workers(cluster.settings, request, places, code)
        errors = []
        for rank, reference in enumerate(references):
            process = ray.get(reference)
            if "error" in process:
                errors.append(process["error"])
                continue
            link = RankLink(
                rank,
                self._actors[rank],
                node_id=nodes[rank],
                process=process,
                channel=self._channel,
                cluster=cluster,
            )
            self._add_link(rank, link)
        if errors:
            raise WorkerError(errors[0])

    def _make_actors(
        self,
        cluster: Cluster,
        group: PlacementGroup,
        request: dict[str, Any],
        bundles: Sequence[int],
        nodes: Sequence[str],
    ) -> None:
        """Create an actor for each rank, in its bundle of the placement group."""
        settings = cluster.settings
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in cluster.list_nodes()}
        custom_resources = {
            name: amount for name, amount in settings.bundle.items() if name not in ("CPU", "GPU")
        }
        for rank, (index, node_id) in enumerate(zip(bundles, nodes, strict=True)):
            actor_class = ray.remote(RankActor).options(
                name=f"detcore-{request['job']}-trial-{request['info']['trial_id']}-rank-{rank}",
                num_cpus=settings.bundle.get("CPU", 0),
                num_gpus=settings.bundle.get("GPU", 0),
                resources=custom_resources or None,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=index
                ),
                # The runner restarts a trial, from its latest checkpoint.
                max_restarts=0,
                max_concurrency=_ACTOR_THREADS,
                runtime_env=dict(settings.runtime_env) or None,
            )
            self._actors.append(actor_class.remote(addresses.get(node_id, cluster.address)))

    def _launch_workers(
        self,
        settings: RaySettings,
        request: dict[str, Any],
        places: Sequence[RankPlace],
        code: bytes | None,
    ) -> list[Any]:
        """Start the workers; return a reference to each actor's result."""
        nodes = ray.get([actor.describe_node.remote() for actor in self._actors])
        disabled, allowed = frozenset(request["disabled"]), request["allowed"]
        allowed = None if allowed is None else frozenset(allowed)
        chief = self._actors[0]
        services: list[str] = []
        if self._slots > 1:
            services = ray.get(chief.prepare_stores.remote(places, disabled, allowed))
        chief_port, master_port = nodes[0]["ports"]
        return [
            actor.start_worker.remote(
                StartRequest(
                    info=request["info"],
                    place=place,
                    home=request["home"],
                    key=request["key"],
                    environment=request["environment"],
                    machine=machine_id(),
                    variables={**request["variables"], **settings.variables},
                    disabled=disabled,
                    allowed=allowed,
                    code=code,
                    num_cpus=int(settings.bundle.get("CPU", 0)),
                    lease_s=settings.lease_s,
                    chief_address=nodes[0]["address"],
                    chief_port=chief_port,
                    master_port=master_port,
                    places=places,
                    stores={name: RemoteStore(chief, name) for name in services},
                    log_header=None if place.rank else request["log_header"].encode(),
                )
            )
            for actor, place in zip(self._actors, places, strict=True)
        ]

    def _add_link(self, rank: int, link: RankLink) -> None:
        link.start()
        with self._lock:
            self._links[rank] = link
            for other, kind, value in self._early:
                if other == rank:
                    link.send_order(kind, value)

    def _wait_for_workers(self, lease: Lease) -> None:
        """Wait until all workers have exited."""
        for rank in range(self._slots):
            while not self._links[rank].join(lease.renewal_period_s):
                lease.renew()
        lease.end()

    def _handle_orders(self, messages: Iterator[dict[str, Any]]) -> None:
        """Execute the runner's orders; kill the workers when the runner exits."""
        for message in messages:
            kind = message["kind"]
            if kind == "reply":
                self._send_order(0, "reply", message["fields"])
            elif kind in ("signal", "kill"):
                self._send_order(message["rank"], kind, message["number"])
        self._kill_all()

    def _kill_all(self) -> None:
        for rank in range(self._slots):
            self._send_order(rank, "kill", signal.SIGKILL)

    def _send_order(self, rank: int, kind: str, value: Any) -> None:
        with self._lock:
            if rank in self._links:
                self._links[rank].send_order(kind, value)
            else:
                self._early.append((rank, kind, value))

    def _raise_if_canceled(self) -> None:
        """Raise an exception if the runner has ended the trial before it started.

        Raises:
            _Canceled: If the runner has ended the trial.
        """
        with self._lock:
            kinds = {kind for _, kind, _ in self._early}
        if "kill" in kinds:
            raise _Canceled(-signal.SIGKILL)
        if "signal" in kinds:
            raise _Canceled(_EXIT_TEMPFAIL)


def _describe_error(error: Exception) -> str:
    if isinstance(error, DetcoreError):
        return str(error)
    return f"Ray could not start the workers: {type(error).__name__}: {error}"
