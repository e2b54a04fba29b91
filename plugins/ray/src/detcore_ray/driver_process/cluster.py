"""Join a Ray cluster, and check and reserve its resources."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray import exceptions
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from detcore.environment import read_variables
from detcore.errors import WorkerError
from detcore_ray.ray_settings import STRATEGIES, RaySettings

_CONNECT_TIMEOUT_S = 10.0
_NOTICE_TIMEOUT_S = 3.0
# Trials do not use the object store, so a cluster started here gets the smallest one.
_OBJECT_STORE_BYTES = 80 << 20


class Cluster:
    """A Ray cluster that this process has joined.

    Args:
        settings: Address of the cluster, and placement of trials.

    Attributes:
        settings: The argument `settings`.
        address: Address of this machine in the cluster.

    Raises:
        WorkerError: If the cluster cannot be joined.
    """

    def __init__(self, settings: RaySettings) -> None:
        self.settings = settings
        # Trials that once fitted wait for room, because a node may come back.
        self._was_possible: set[int] = set()
        address = settings.address or read_variables(["RAY_ADDRESS"]).get("RAY_ADDRESS") or "local"
        host, colon, port = address.rpartition(":")
        if colon and port.isdecimal():
            _check_reachable(host, int(port))
        options: dict[str, Any] = {}
        self._folder: str | None = None
        if address == "local":
            # A short path, because socket paths are limited to 107 bytes.
            root = "/tmp" if os.access("/tmp", os.W_OK) else None
            self._folder = tempfile.mkdtemp(prefix="detcore-ray-", dir=root)
            options = {
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "_temp_dir": self._folder,
            }
        try:
            ray.init(
                address=address,
                namespace="detcore",
                log_to_driver=False,
                logging_level=logging.ERROR,
                **options,
            )
        except Exception as error:
            raise WorkerError(
                f"the Ray cluster {address!r} cannot be joined: {_first_line(error)}\n"
                "Start a cluster (ray start --head) and run this command on one of its nodes, or "
                "omit launcher.address to start a cluster for this run."
            ) from error
        self.address = str(ray.util.get_node_ip_address())

    def leave_cluster(self) -> None:
        """Leave the cluster. A cluster that was started here ends."""
        ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def list_nodes(self) -> list[dict[str, Any]]:
        """Return Ray's descriptions of the live nodes."""
        return [node for node in ray.nodes() if node["Alive"]]

    def other_machines(self) -> list[str]:
        """Return the addresses of other machines on which workers may run."""
        addresses = {
            node["NodeManagerAddress"] for node in self.list_nodes() if self._count_slots(node)
        }
        return sorted(addresses - {self.address})

    def check_room(self, slots: int) -> None:
        """Check that a trial with `slots` workers fits the cluster.

        Raises:
            WorkerError: If the cluster is too small even without other work.
        """
        if self._is_possible(slots):
            self._was_possible.add(slots)
        elif slots not in self._was_possible and not self.settings.wait_for_nodes:
            raise WorkerError(self._explain_no_fit(slots))

    def create_group(self, slots: int, name: str) -> PlacementGroup:
        """Request a placement group with one bundle per slot.

        Raises:
            WorkerError: If the cluster is too small even without other work.
        """
        self.check_room(slots)
        return placement_group(
            [self.settings.bundle] * slots, strategy=self.settings.strategy, name=name
        )

    def remove_group(self, group: PlacementGroup) -> None:
        """Release the resources of a placement group."""
        with contextlib.suppress(Exception):
            remove_placement_group(group)

    def explain_wait(self, slots: int) -> str:
        """Return the reason why a placement group is still waiting."""
        free = _select_amounts(ray.available_resources(), self.settings.bundle)
        total = _select_amounts(ray.cluster_resources(), self.settings.bundle)
        has = ", ".join(f"{free[name]:g} of {total[name]:g} {name} free" for name in free)
        is_possible = "" if self._is_possible(slots) else "; its current nodes are too small"
        return (
            f"waiting for room for {_format_bundles(slots)} of "
            f"{describe_bundle(self.settings.bundle)} ({self.settings.strategy}); "
            f"the cluster has {has}{is_possible}"
        )

    def _count_slots(self, node: Mapping[str, Any]) -> int:
        """Return the number of workers that fit on a node."""
        bundle = self.settings.bundle
        return min(int(node["Resources"].get(name, 0) / amount) for name, amount in bundle.items())

    def _is_possible(self, slots: int) -> bool:
        fits = [self._count_slots(node) for node in self.list_nodes()]
        if self.settings.strategy == "STRICT_PACK":
            return max(fits, default=0) >= slots
        if self.settings.strategy == "STRICT_SPREAD":
            return sum(count > 0 for count in fits) >= slots
        return sum(fits) >= slots

    def _explain_no_fit(self, slots: int) -> str:
        settings = self.settings
        lines = [
            f"the cluster cannot hold a trial of {_format_bundles(slots)} of "
            f"{describe_bundle(settings.bundle)} ({settings.strategy}: "
            f"{STRATEGIES[settings.strategy]}), even without other work. It has:"
        ]
        for node in self.list_nodes():
            amounts = _select_amounts(node["Resources"], settings.bundle)
            lines.append(f"  node {node['NodeManagerAddress']}: {describe_bundle(amounts)}")
        return "\n".join(
            [
                *lines,
                "Request less (launcher.cpus_per_slot, resources.slots_per_trial), add nodes, or "
                "wait for new nodes (launcher.wait_for_nodes: true).",
            ]
        )

    def explain_loss(self, node_id: str, error: Exception) -> tuple[str, bool]:
        """Return the reason why an actor died, and whether its whole node died."""
        deadline = time.monotonic() + _NOTICE_TIMEOUT_S
        while True:
            state = next((node for node in ray.nodes() if node["NodeID"] == node_id), None)
            has_died = state is None or not state["Alive"]
            # Ray reports the actor and its node separately.
            blames_node = "node" in str(error) and "died" in str(error)
            if has_died or not blames_node or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        where = f"node {state['NodeManagerAddress'] if state else '?'} (Ray node {node_id[:8]})"
        if has_died:
            why = (state or {}).get("DeathReasonMessage") or "it is no longer in the cluster"
            return f"{where} died: {_shorten(why)}", True
        return f"its actor on {where} died: {_explain_death(error)}", False


def _check_reachable(host: str, port: int) -> None:
    """Check within seconds that a cluster is reachable. Ray would retry for minutes."""
    try:
        socket.create_connection((host, port), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise WorkerError(
            f"no Ray cluster answers at {host}:{port}: {error}.\n"
            "Set launcher.address to the head node's address that `ray start --head` printed, such "
            "as 10.0.0.7:6379, or to auto on a node of the cluster."
        ) from error


def describe_bundle(bundle: Mapping[str, float]) -> str:
    """Return a bundle as a string, such as ``{CPU: 2, GPU: 1}``."""
    return "{" + ", ".join(f"{name}: {amount:g}" for name, amount in bundle.items()) + "}"


def _format_bundles(slots: int) -> str:
    return f"{slots} bundle{'s' if slots > 1 else ''}"


def _select_amounts(
    resources: Mapping[str, float], bundle: Mapping[str, float]
) -> dict[str, float]:
    return {name: float(resources.get(name, 0)) for name in bundle}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {_shorten(lines[0]) if lines else ''}"


def _explain_death(error: Exception) -> str:
    """Return the line of Ray's message with the reason."""
    if isinstance(error, exceptions.RayActorError):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reasons = [line for line in lines if " because " in line or "exit" in line.lower()]
        return _shorten((reasons or lines or ["no reason given"])[-1])
    return _first_line(error)


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:300]}..."
