"""One trial: its placement group, its actors, and the runner's wishes."""

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
from detcore_ray.driver_process.lease import Lease, left_over_s
from detcore_ray.driver_process.rank_link import RankLink
from detcore_ray.messages import Line
from detcore_ray.ray_settings import RaySettings
from detcore_ray.worker_node.node_processes import machine_id
from detcore_ray.worker_node.trial_code import pack_code
from detcore_ray.worker_node.worker_actor import AskStore, RankActor, Start

_EXIT_TEMPFAIL = 75
_PLACE_POLL_S = 0.2
# So long a trial may take to be placed before it counts as waiting.
_EXIT_TIMEOUT_S = 2.0
_WAITING_TOLD_EVERY_S = 60.0
_ACTOR_THREADS = 32
_END_TIMEOUT_S = 5.0


def run_trial(cluster: Cluster | str, descriptors: Sequence[int]) -> None:
    """Run a trial until its workers are gone.

    Args:
        cluster: The cluster, or the reason why it could not be joined.
        descriptors: The trial's socket, then those to hold open as long as workers may run.
    """
    line = Line(socket.socket(fileno=descriptors[0]))
    try:
        _Trial(line, cluster).run()
    finally:
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        line.close()


class _Canceled(Exception):
    """The trial is to end before it has begun.

    Attributes:
        code: The exit code that its workers are said to have ended with.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Trial:
    def __init__(self, line: Line, cluster: Cluster | str) -> None:
        self._line = line
        self._given = cluster
        self._slots = 0
        self._actors: list[Any] = []
        self._links: dict[int, RankLink] = {}
        # Orders for workers that have not begun.
        self._early: list[tuple[int, str, Any]] = []
        self._lock = threading.Lock()

    def run(self) -> None:
        heard = self._line.heard()
        request = next(heard, None)
        if request is None:
            return
        self._slots = int(request["slots"])
        if request["kind"] == "check":
            self._check()
            return
        threading.Thread(target=self._obey, args=(heard,), name="obey", daemon=True).start()
        try:
            self._run(self._joined(), request)
        except _Canceled as canceled:
            self._say_ended(canceled.code)
        except Exception as error:  # noqa: BLE001  (the runner is told, whatever it is)
            self._line.say("refused", error=_told(error))
            self._say_ended(1)

    def _joined(self) -> Cluster:
        """Return the cluster.

        Raises:
            WorkerError: If it could not be joined.
        """
        if isinstance(self._given, str):
            raise WorkerError(self._given)
        return self._given

    def _check(self) -> None:
        """Say whether trials like this one could be started; nothing is."""
        try:
            cluster = self._joined()
            cluster.check_room(self._slots)
        except Exception as error:  # noqa: BLE001  (the runner is told, whatever it is)
            self._line.say("refused", error=_told(error))
        else:
            self._line.say("accepted")

    def _run(self, cluster: Cluster, request: dict[str, Any]) -> None:
        trial_dir = Path(request["info"]["trial_dir"])
        self._tell_where_checkpoints_go(cluster, request)
        self._wait_for_earlier(trial_dir)
        group = cluster.place(self._slots, f"detcore-{request['job']}")
        try:
            self._wait_until_placed(cluster, group)
            lease = Lease(trial_dir, cluster.settings.lease_s)
            try:
                self._start(cluster, group, request)
            except exceptions.RayActorError as error:
                # A node died during the start: treat the trial like any other that lost a node.
                self._line.say("started", pids=[0] * self._slots)
                self._line.say("lost", text=f"a node was lost while the trial started: {error}")
                # Whether a worker had begun on it is not known: the lease stays.
                self._end_all()
                self._say_ended(-signal.SIGKILL)
                return
            except BaseException:
                if self._end_all():
                    lease.end()
                raise
            lease.note([self._links[rank].process for rank in range(self._slots)])
            pids = [self._links[rank].process["pid"] for rank in range(self._slots)]
            self._line.say("started", pids=pids)
            self._follow(lease)
        finally:
            for actor in self._actors:
                ray.kill(actor)
            cluster.remove(group)

    def _end_all(self) -> bool:
        """End the workers that have begun; return whether they are surely gone."""
        self._kill_all()
        return all(link.join(_END_TIMEOUT_S) for link in self._links.values())

    def _say_ended(self, code: int) -> None:
        for rank in range(self._slots):
            self._line.say("ended", rank=rank, code=code)

    def _tell_where_checkpoints_go(self, cluster: Cluster, request: dict[str, Any]) -> None:
        storage = request["info"]["config"].get("checkpoint_storage") or {}
        is_folder = storage.get("type", "directory") in ("directory", "shared_fs")
        if is_folder and cluster.other_machines():
            self._line.say(
                "notice",
                text="checkpoints go to a folder: all machines of the cluster have to share it",
            )

    def _wait_for_earlier(self, trial_dir: Path) -> None:
        """Wait until workers of an earlier run of the trial are surely gone."""
        left_s = left_over_s(trial_dir)
        if left_s <= 0:
            return
        self._line.say("waits")
        self._line.say(
            "notice",
            text="what ran this trial before was killed, and its workers may be on nodes that "
            f"cannot be asked; they have surely ended in {left_s:.0f} s",
        )
        deadline = time.monotonic() + left_s
        while time.monotonic() < deadline:
            self._look_for_cancel()
            time.sleep(_PLACE_POLL_S)

    def _wait_until_placed(self, cluster: Cluster, group: PlacementGroup) -> None:
        began, told_at = time.monotonic(), 0.0
        while not group.wait(timeout_seconds=_PLACE_POLL_S):
            self._look_for_cancel()
            now = time.monotonic()
            if now - began < _EXIT_TIMEOUT_S or now < told_at + _WAITING_TOLD_EVERY_S:
                continue
            self._line.say("notice", text=cluster.why_waiting(self._slots))
            if not told_at:
                self._line.say("waits")
            told_at = now
        if told_at:
            self._line.say("notice", text=f"placed after {time.monotonic() - began:.0f} s")

    def _start(self, cluster: Cluster, group: PlacementGroup, request: dict[str, Any]) -> None:
        """Make the actors and start their workers.

        Raises:
            WorkerError: If one does not start.
        """
        table = placement_group_table(group)["bundles_to_node_id"]
        # Ranks of one node follow each other.
        order = [table[index] for index in range(self._slots)]
        bundles = sorted(range(self._slots), key=lambda index: (order.index(order[index]), index))
        nodes = [table[index] for index in bundles]
        places = place_ranks(nodes)
        has_code = not cluster.other_machines() or "working_dir" in cluster.settings.runtime_env
        code = None if has_code else pack_code(Path(request["info"]["model_dir"]))
        self._make_actors(cluster, group, request, bundles, nodes)
        self._look_for_cancel()
        begun = self._begin_workers(cluster.settings, request, places, code)
        errors = []
        for rank, reference in enumerate(begun):
            told = ray.get(reference)
            if "error" in told:
                errors.append(told["error"])
                continue
            link = RankLink(
                rank, self._actors[rank], node_id=nodes[rank], process=told, line=self._line,
                cluster=cluster,
            )  # fmt: skip
            self._add(rank, link)
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
        """Make an actor for each rank, in its bundle of the placement group."""
        settings = cluster.settings
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in cluster.nodes()}
        others = {n: a for n, a in settings.bundle.items() if n not in ("CPU", "GPU")}
        for rank, (index, node_id) in enumerate(zip(bundles, nodes, strict=True)):
            made = ray.remote(RankActor).options(
                name=f"detcore-{request['job']}-trial-{request['info']['trial_id']}-rank-{rank}",
                num_cpus=settings.bundle.get("CPU", 0),
                num_gpus=settings.bundle.get("GPU", 0),
                resources=others or None,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=index
                ),
                # It is the runner that starts a trial again, from its latest checkpoint.
                max_restarts=0,
                max_concurrency=_ACTOR_THREADS,
                runtime_env=dict(settings.runtime_env) or None,
            )
            self._actors.append(made.remote(addresses.get(node_id, cluster.address)))

    def _begin_workers(
        self,
        settings: RaySettings,
        request: dict[str, Any],
        places: Sequence[RankPlace],
        code: bytes | None,
    ) -> list[Any]:
        """Begin the workers; return a reference to the answer of each."""
        looks = ray.get([actor.look.remote() for actor in self._actors])
        disabled, allowed = frozenset(request["disabled"]), request["allowed"]
        allowed = None if allowed is None else frozenset(allowed)
        chief = self._actors[0]
        services: list[str] = []
        if self._slots > 1:
            services = ray.get(chief.prepare_stores.remote(places, disabled, allowed))
        chief_port, master_port = looks[0]["ports"]
        return [
            actor.begin.remote(
                Start(
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
                    chief_address=looks[0]["address"],
                    chief_port=chief_port,
                    master_port=master_port,
                    places=places,
                    stores={name: AskStore(chief, name) for name in services},
                    log_header=None if place.rank else request["log_header"].encode(),
                )
            )
            for actor, place in zip(self._actors, places, strict=True)
        ]

    def _add(self, rank: int, link: RankLink) -> None:
        link.start()
        with self._lock:
            self._links[rank] = link
            for other, kind, value in self._early:
                if other == rank:
                    link.order(kind, value)

    def _follow(self, lease: Lease) -> None:
        """Wait for the end of all workers."""
        for rank in range(self._slots):
            while not self._links[rank].join(lease.every_s):
                lease.touch()
        lease.end()

    def _obey(self, heard: Iterator[dict[str, Any]]) -> None:
        """Carry out the runner's orders; end the workers when it is gone."""
        for said in heard:
            kind = said["kind"]
            if kind == "reply":
                self._order(0, "reply", said["fields"])
            elif kind in ("signal", "kill"):
                self._order(said["rank"], kind, said["number"])
        self._kill_all()

    def _kill_all(self) -> None:
        for rank in range(self._slots):
            self._order(rank, "kill", signal.SIGKILL)

    def _order(self, rank: int, kind: str, value: Any) -> None:
        with self._lock:
            if rank in self._links:
                self._links[rank].order(kind, value)
            else:
                self._early.append((rank, kind, value))

    def _look_for_cancel(self) -> None:
        """Give up a trial that is to end before it has begun.

        Raises:
            _Canceled: If it is.
        """
        with self._lock:
            kinds = {kind for _, kind, _ in self._early}
        if "kill" in kinds:
            raise _Canceled(-signal.SIGKILL)
        if "signal" in kinds:
            raise _Canceled(_EXIT_TEMPFAIL)


def _told(error: Exception) -> str:
    if isinstance(error, DetcoreError):
        return str(error)
    return f"Ray could not start the workers: {type(error).__name__}: {error}"
