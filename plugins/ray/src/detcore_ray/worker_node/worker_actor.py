"""Actor that starts one worker on its node and forwards the worker's output and events.

The worker is a separate process. It ends whenever the actor's process ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import ray

from detcore.environment import child_environment
from detcore.errors import DetcoreError, WorkerError
from detcore.launch import WorkerGroup
from detcore.launch.nodes import (
    LogSource,
    RankPlace,
    RendezvousService,
    RendezvousStore,
    drop_outer_job_variables,
    find_interface,
    find_services,
    rank_variables,
    start_rank,
)
from detcore.types import TrialInfo
from detcore_ray.worker_node.node_processes import describe_process, machine_id
from detcore_ray.worker_node.trial_code import unpack_code

_BATCH_TIMEOUT_S = 2.0
_POLL_INTERVAL_S = 0.1
_MAX_PENDING_CHARS = 8 << 20
_EXIT_LEASE_EXPIRED = 70
# Variables that affect training have the same values on all machines.
_FORWARDED_PREFIXES = (
    "DETCORE_", "DET_", "GLOO_", "HOROVOD_", "JAX_", "KERAS_", "KMP_", "MKL_", "NCCL_",
    "OPENBLAS_", "TF_", "TORCH_", "XLA_",
)  # fmt: skip
_RAY_VARIABLES = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_LD_PRELOAD_ON_WORKERS", "SPT_NOENV")
_DEVICES = "CUDA_VISIBLE_DEVICES"


class RemoteStore:
    """Accesses the values of a rendezvous service through Ray, without opening a port.

    Args:
        chief: Handle of rank 0's actor.
        service: Name of the service.
    """

    def __init__(self, chief: Any, service: str) -> None:
        self._chief = chief
        self._service = service

    def get(self, scope: str, key: str) -> bytes | None:
        """Return a value, or None if it is not set yet."""
        value: bytes | None = ray.get(self._chief.store_get.remote(self._service, scope, key))
        return value

    def put(self, scope: str, key: str, value: bytes) -> bool:
        """Store a value; return whether it fitted."""
        return bool(ray.get(self._chief.store_put.remote(self._service, scope, key, value)))

    def delete(self, scope: str, key: str) -> None:
        """Record that a rank has left a scope."""
        ray.get(self._chief.store_delete.remote(self._service, scope, key))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """Arguments for starting a worker.

    Attributes:
        environment: The runner's environment variables.
        machine: The runner's machine.
        variables: Variables of the worker that override all others.
        code: The trial's packed code, or None if the node has its directory.
        num_cpus: Number of cores reserved for the worker; 0 if unknown.
        places: Places of all workers, by rank.
        stores: Rank 0's store of each rendezvous service, by service name.
        log_header: First line of the trial's log for rank 0; None for other ranks.
    """

    info: Mapping[str, Any]
    place: RankPlace
    home: str
    key: str
    environment: Mapping[str, str]
    machine: str
    variables: Mapping[str, str]
    disabled: frozenset[str]
    allowed: frozenset[str] | None
    code: bytes | None
    num_cpus: int
    lease_s: float
    chief_address: str
    chief_port: int
    master_port: int
    places: Sequence[RankPlace]
    stores: Mapping[str, RemoteStore]
    log_header: bytes | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Output and events of a worker since the previous batch.

    Attributes:
        number: Number of this batch.
        clock: Clock of the actor, in seconds.
        lines: Stream and text of each line.
        events: The worker's events, each with its ``type``.
        log: Parts of the trial's log, each with its byte offset; empty if the runner can read the
            file.
        code: Exit code of the worker in its last batch, otherwise None.
    """

    number: int
    clock: float
    lines: list[tuple[str, str]]
    events: list[dict[str, Any]]
    log: list[tuple[int, bytes]]
    code: int | None


class _Closable(Protocol):
    def close(self) -> None: ...


class RankActor:
    """Starts one worker and forwards its messages. Ray calls the methods from several threads."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._changed = threading.Condition()
        self._lines: list[tuple[str, str]] = []
        self._num_waiting = 0
        self._events: list[dict[str, Any]] = []
        self._log: list[tuple[int, bytes]] = []
        self._source: LogSource | None = None
        self._code: int | None = None
        self._batch: Batch | None = None
        self._last_order = -1
        self._group: WorkerGroup | None = None
        self._group_lock = threading.Lock()
        self._stores: dict[str, RendezvousStore] = {}
        self._resources: list[_Closable] = []
        self._lease_end = float("inf")
        self._lease_s = float("inf")

    def describe_node(self) -> dict[str, Any]:
        """Return the machine's address and id, and two free ports."""
        return {
            "address": self._address,
            "machine": machine_id(),
            "ports": [self._reserve_port(), self._reserve_port()],
        }

    def _reserve_port(self) -> int:
        # A bound socket reserves the port from other processes, but the worker can listen on it.
        holder = socket.socket()
        self._resources.append(holder)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((self._address, 0))
        return int(holder.getsockname()[1])

    def start_worker(self, start: StartRequest) -> dict[str, Any]:
        """Start the worker; return its process, or ``{"error": ...}``."""
        info = TrialInfo(**start.info)
        if start.code is not None:
            stack = contextlib.ExitStack()
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="detcore-code-"))
            self._resources.append(stack)
            unpack_code(start.code, Path(folder))
            info = dataclasses.replace(info, model_dir=folder)
        self._lease_s = start.lease_s
        self._lease_end = time.monotonic() + start.lease_s
        threading.Thread(target=self._watch_lease, name="detcore-lease", daemon=True).start()
        try:
            if start.log_header is not None:
                self._source = LogSource(info, start.log_header)
            group = start_rank(
                info,
                self._build_environment(start, info),
                rank=start.place.rank,
                home=Path(start.home),
                on_output=self._add_line,
                disabled_plugins=start.disabled,
                allowed_plugins=start.allowed,
            )
        except (DetcoreError, OSError) as error:
            return {"error": str(error)}
        process = describe_process(group.pid)
        self._group = group
        threading.Thread(target=self._collect_output, args=(group,), name="detcore-follow").start()
        return process

    def _build_environment(self, start: StartRequest, info: TrialInfo) -> dict[str, str]:
        local_variables = child_environment({}, without=_RAY_VARIABLES)
        if start.machine == machine_id():
            # As for workers that the runner starts itself.
            environment = dict(start.environment)
        else:
            environment = {**local_variables, **{
                name: value for name, value in start.environment.items()
                if name.startswith(_FORWARDED_PREFIXES)
            }}  # fmt: skip
            environment.pop("OMP_NUM_THREADS", None)
        variables = dict(start.variables)
        if local_variables.get(_DEVICES):
            # The devices that Ray assigned to this actor.
            variables[_DEVICES] = local_variables[_DEVICES]
        elif start.machine != machine_id():
            variables.pop(_DEVICES, None)  # devices of the runner's machine
        place = start.place
        interface = find_interface(self._address)
        rank_values = rank_variables(
            place,
            key=start.key,
            chief_address=start.chief_address,
            chief_port=start.chief_port,
            master_port=start.master_port,
            interface=interface,
        )
        services: dict[str, RendezvousService] = {}
        if start.stores:
            services = find_services(disabled_plugins=start.disabled, allowed_plugins=start.allowed)
        for name, store in start.stores.items():
            if name not in services:
                raise WorkerError(
                    f"rank {place.rank} runs on a node without the plugin for the rendezvous "
                    f"{name!r}, which rank 0 has.\nInstall the same plugins on all nodes."
                )
            opened = services[name].open(start.places, self._stores.get(name, store))
            self._resources.append(opened)
            gradients = info.settings.gradients
            rank_values.update(opened.variables(place, interface=interface, gradients=gradients))
        environment = drop_outer_job_variables(environment, place, num_cores=start.num_cpus or None)
        return {**environment, **rank_values, **variables}

    def prepare_stores(
        self,
        places: Sequence[RankPlace],
        disabled: frozenset[str],
        allowed: frozenset[str] | None,
    ) -> list[str]:
        """Create the stores of all rendezvous services on rank 0, before any worker starts.

        Returns:
            The names of the services.
        """
        services = find_services(disabled_plugins=disabled, allowed_plugins=allowed)
        self._stores = {name: service.make_store(places) for name, service in services.items()}
        return list(services)

    def store_get(self, service: str, scope: str, key: str) -> bytes | None:
        """Return a value of a rendezvous service, or None if it is not set yet."""
        return self._stores[service].get(scope, key)

    def store_put(self, service: str, scope: str, key: str, value: bytes) -> bool:
        """Store a value of a rendezvous service."""
        return self._stores[service].put(scope, key, value)

    def store_delete(self, service: str, scope: str, key: str) -> None:
        """Record that a worker has left a scope of a rendezvous service."""
        self._stores[service].delete(scope, key)

    def _add_line(self, rank: int, stream: str, line: str) -> None:
        with self._changed:
            # A worker waits if it prints faster than the runner reads.
            while self._num_waiting > _MAX_PENDING_CHARS:
                self._changed.wait()
            self._lines.append((stream, line))
            self._num_waiting += len(line)
            self._changed.notify_all()

    def _collect_output(self, group: WorkerGroup) -> None:
        """Collect the worker's events and its part of the log until it exits."""
        while True:
            select.select([group.fileno()], [], [], _POLL_INTERVAL_S)
            with self._group_lock:
                events = group.poll()
            log = self._read_log()
            if events or log:
                with self._changed:
                    self._events += [{**event.fields, "type": event.type} for event in events]
                    self._log += log
                    self._changed.notify_all()
            if not group.is_alive:
                break
        with self._group_lock:
            self._group = None
        code = group.close()
        for resource in self._resources:
            resource.close()
        log = self._read_log(is_over=True)
        with self._changed:
            self._log += log
            self._code = code
            self._changed.notify_all()

    def _read_log(self, *, is_over: bool = False) -> list[tuple[int, bytes]]:
        """Return new parts of the trial's log: at most one while it is written, all at its end."""
        parts: list[tuple[int, bytes]] = []
        while self._source is not None:
            part = self._source.read(is_over=is_over)
            if not part[1]:
                break
            parts.append(part)
            if not is_over:
                break
        return parts

    def take_batch(self, number: int, heard: float | None) -> Batch:
        """Return the next batch once the worker has output, or an empty batch after a timeout.

        A call with the same number returns the same batch again, because a reply may get lost.

        Args:
            number: Number of the batch: one more than the last received batch.
            heard: `Batch.clock` of the last received batch. Only this prolongs the worker's lease,
                so the driver knows when the lease ends.
        """
        if heard is not None:
            self._lease_end = heard + self._lease_s
        if self._batch is not None and self._batch.number == number:
            return self._batch
        with self._changed:
            self._changed.wait_for(
                lambda: self._lines or self._events or self._log or self._code is not None,
                min(_BATCH_TIMEOUT_S, self._lease_s / 6),
            )
            self._batch = Batch(
                number=number,
                clock=time.monotonic(),
                lines=self._lines,
                events=self._events,
                log=self._log,
                code=self._code,
            )
            self._lines, self._events, self._log, self._num_waiting = [], [], [], 0
            self._changed.notify_all()
        return self._batch

    def deliver_order(self, number: int, kind: str, value: Any) -> None:
        """Pass an order to the worker, exactly once per number and in order.

        Args:
            number: Number of the order, from 0.
            kind: ``"reply"``, ``"signal"`` or ``"kill"``.
            value: The fields of a reply, or the number of a signal.
        """
        with self._group_lock:
            if number <= self._last_order:
                return
            self._last_order = number
            if self._group is None:
                return
            if kind == "reply":
                self._group.reply(**value)
            elif kind == "signal":
                self._group.signal(value)
            else:
                self._group.kill()

    def _watch_lease(self) -> None:
        """Kill the worker and this process when the lease expires."""
        while time.monotonic() < self._lease_end:
            if self._code is not None:
                return
            time.sleep(_POLL_INTERVAL_S)
        group = self._group
        if group is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group.pid, signal.SIGKILL)
        print("detcore-ray: no message from the runner; the worker was killed", file=sys.stderr)
        os._exit(_EXIT_LEASE_EXPIRED)
