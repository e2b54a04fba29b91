"""The Ray cluster: joining it, its resources, and whether they are enough."""

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
# Trials put nothing into the object store: a cluster started here gets the smallest possible one.
_OBJECT_STORE_BYTES = 80 << 20


class Cluster:
    """A Ray cluster that this process has joined.

    Args:
        settings: Which one, and how trials are placed.

    Attributes:
        settings: As given.
        address: Of this machine, as the cluster has it.

    Raises:
        WorkerError: If it cannot be joined.
    """

    def __init__(self, settings: RaySettings) -> None:
        self.settings = settings
        # Placements that were possible once are waited for: a node may be coming back.
        self._was_possible: set[int] = set()
        address = settings.address or read_variables(["RAY_ADDRESS"]).get("RAY_ADDRESS") or "local"
        host, colon, port = address.rpartition(":")
        if colon and port.isdecimal():
            _try_to_reach(host, int(port))
        options: dict[str, Any] = {}
        self._folder: str | None = None
        if address == "local":
            # Short: paths of sockets have to fit into 107 bytes.
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
                "Start one (ray start --head) and run this on one of its nodes, or leave out "
                "launcher.address, so that one is started for the run."
            ) from error
        self.address = str(ray.util.get_node_ip_address())

    def leave(self) -> None:
        """Leave it; one that was started here ends."""
        ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that are there, as Ray describes them."""
        return [node for node in ray.nodes() if node["Alive"]]

    def other_machines(self) -> list[str]:
        """Return the addresses of other machines on which workers may run."""
        found = {node["NodeManagerAddress"] for node in self.nodes() if self._fits(node)}
        return sorted(found - {self.address})

    def check_room(self, slots: int) -> None:
        """Refuse a trial of so many workers for which there will never be room.

        Raises:
            WorkerError: If the cluster could not hold it if it did nothing else.
        """
        if self._is_possible(slots):
            self._was_possible.add(slots)
        elif slots not in self._was_possible and not self.settings.wait_for_nodes:
            raise WorkerError(self._why_impossible(slots))

    def place(self, slots: int, name: str) -> PlacementGroup:
        """Ask for a placement group of one bundle for each slot.

        Raises:
            WorkerError: If the cluster could not hold it if it did nothing else.
        """
        self.check_room(slots)
        return placement_group(
            [self.settings.bundle] * slots, strategy=self.settings.strategy, name=name
        )

    def remove(self, group: PlacementGroup) -> None:
        """Release the resources of a placement group."""
        with contextlib.suppress(Exception):
            remove_placement_group(group)

    def why_waiting(self, slots: int) -> str:
        """Return the reason why a placement group is not placed yet."""
        free = _amounts(ray.available_resources(), self.settings.bundle)
        total = _amounts(ray.cluster_resources(), self.settings.bundle)
        has = ", ".join(f"{free[name]:g} of {total[name]:g} {name} free" for name in free)
        is_possible = (
            "" if self._is_possible(slots) else "; no set of its nodes is large enough now"
        )
        return (
            f"waiting for room for {_count(slots)} of {describe_bundle(self.settings.bundle)} "
            f"({self.settings.strategy}); the cluster has {has}{is_possible}"
        )

    def _fits(self, node: Mapping[str, Any]) -> int:
        """Return how many workers a node can hold."""
        bundle = self.settings.bundle
        return min(int(node["Resources"].get(name, 0) / amount) for name, amount in bundle.items())

    def _is_possible(self, slots: int) -> bool:
        fits = [self._fits(node) for node in self.nodes()]
        if self.settings.strategy == "STRICT_PACK":
            return max(fits, default=0) >= slots
        if self.settings.strategy == "STRICT_SPREAD":
            return sum(count > 0 for count in fits) >= slots
        return sum(fits) >= slots

    def _why_impossible(self, slots: int) -> str:
        settings = self.settings
        lines = [
            f"the cluster cannot hold a trial of {_count(slots)} of "
            f"{describe_bundle(settings.bundle)} ({settings.strategy}: "
            f"{STRATEGIES[settings.strategy]}), even with nothing else on it. It has:"
        ]
        for node in self.nodes():
            amounts = _amounts(node["Resources"], settings.bundle)
            lines.append(f"  node {node['NodeManagerAddress']}: {describe_bundle(amounts)}")
        return "\n".join(
            [
                *lines,
                "Ask for less (launcher.cpus_per_slot, resources.slots_per_trial), add nodes, or "
                "wait for some that are to come: launcher.wait_for_nodes: true",
            ]
        )

    def why_lost(self, node_id: str, error: Exception) -> tuple[str, bool]:
        """Say why an actor is gone, and whether its whole node is."""
        deadline = time.monotonic() + _NOTICE_TIMEOUT_S
        while True:
            found = next((node for node in ray.nodes() if node["NodeID"] == node_id), None)
            is_gone = found is None or not found["Alive"]
            # The two notices come one after the other.
            says_node = "node" in str(error) and "died" in str(error)
            if is_gone or not says_node or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        where = f"node {found['NodeManagerAddress'] if found else '?'} (Ray node {node_id[:8]})"
        if is_gone:
            why = (found or {}).get("DeathReasonMessage") or "it is not in the cluster any more"
            return f"{where} died: {_shortened(why)}", True
        return f"its actor on {where} died: {_why_died(error)}", False


def _try_to_reach(host: str, port: int) -> None:
    """Notice within seconds what Ray would try for minutes."""
    try:
        socket.create_connection((host, port), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise WorkerError(
            f"no Ray cluster answers at {host}:{port}: {error}.\n"
            "launcher.address is the head node's address, as `ray start --head` tells it, such as "
            "10.0.0.7:6379; or auto on one of the cluster's nodes."
        ) from error


def describe_bundle(bundle: Mapping[str, float]) -> str:
    """Return such as ``{CPU: 2, GPU: 1}``."""
    return "{" + ", ".join(f"{name}: {amount:g}" for name, amount in bundle.items()) + "}"


def _count(slots: int) -> str:
    return f"{slots} bundle{'s' if slots > 1 else ''}"


def _amounts(found: Mapping[str, float], bundle: Mapping[str, float]) -> dict[str, float]:
    return {name: float(found.get(name, 0)) for name in bundle}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {_shortened(lines[0]) if lines else ''}"


def _why_died(error: Exception) -> str:
    """Return the reason out of Ray's many lines."""
    if isinstance(error, exceptions.RayActorError):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = [line for line in lines if " because " in line or "exit" in line.lower()]
        return _shortened((told or lines or ["no reason given"])[-1])
    return _first_line(error)


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:300]}..."
