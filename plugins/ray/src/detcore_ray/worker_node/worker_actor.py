"""Actor that starts one worker on its node and forwards the worker's output and events.

The worker is a separate process. It ends when the actor's process ends, however that happens.
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

_HOLD_S = 2.0
_WATCH_S = 0.1
_MAX_WAITING = 8 << 20
_EXIT_UNHEARD = 70
# Variables that affect training have the same values on all machines.
_PASSED_ON = ("DETCORE_", "DET_", "GLOO_", "HOROVOD_", "JAX_", "KERAS_", "KMP_", "MKL_", "NCCL_",
              "OPENBLAS_", "TF_", "TORCH_", "XLA_")  # fmt: skip
_RAYS_OWN = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_LD_PRELOAD_ON_WORKERS", "SPT_NOENV")
_DEVICES = "CUDA_VISIBLE_DEVICES"


class AskStore:
    """Reaches the values of a rendezvous service over Ray, so that no port is opened for them.

    Args:
        chief: Handle of rank 0's actor.
        service: Name of the service.
    """

    def __init__(self, chief: Any, service: str) -> None:
        self._chief = chief
        self._service = service

    def get(self, scope: str, key: str) -> bytes | None:
        """Return a value, or None if it is not set yet."""
        found: bytes | None = ray.get(self._chief.store_get.remote(self._service, scope, key))
        return found

    def put(self, scope: str, key: str, value: bytes) -> bool:
        """Keep a value; return whether there was room for it."""
        return bool(ray.get(self._chief.store_put.remote(self._service, scope, key, value)))

    def delete(self, scope: str, key: str) -> None:
        """Record that a rank has left a scope."""
        ray.get(self._chief.store_delete.remote(self._service, scope, key))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Arguments with which an actor starts its worker.

    Attributes:
        environment: The runner's environment variables.
        machine: The runner's machine.
        variables: Variables of the worker that override all others.
        code: The trial's code, packed; None where its folder is on the node already.
        num_cpus: How many cores the worker has for itself; 0: not said.
        places: Those of all workers, by rank.
        stores: Reach the values of each rendezvous service, which are with rank 0, by its name.
        log_header: First line of the trial's log, of rank 0; None for others.
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
    stores: Mapping[str, AskStore]
    log_header: bytes | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Output and events of a worker since the previous batch.

    Attributes:
        number: Of this batch.
        clock: The actor's, in seconds.
        lines: Stream and text of each line.
        events: The worker's events, each with its ``type``.
        log: Parts of the trial's log, each with the byte where it begins; none where the runner
            sees the file itself.
        code: Its exit code once it has ended and this is the last batch, else None.
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
    """Starts one worker and speaks for it. Ray calls the methods from several threads."""

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
        self._last_told = -1
        self._group: WorkerGroup | None = None
        self._group_lock = threading.Lock()
        self._stores: dict[str, RendezvousStore] = {}
        self._closed_at_end: list[_Closable] = []
        self._lease_ends = float("inf")
        self._lease_s = float("inf")

    def look(self) -> dict[str, Any]:
        """Return which machine this is, and two ports of it that are free."""
        return {
            "address": self._address,
            "machine": machine_id(),
            "ports": [self._reserve_port(), self._reserve_port()],
        }

    def _reserve_port(self) -> int:
        # Bound but not listening: no other process gets the port, and the worker can listen on it.
        holder = socket.socket()
        self._closed_at_end.append(holder)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((self._address, 0))
        return int(holder.getsockname()[1])

    def begin(self, start: Start) -> dict[str, Any]:
        """Start the worker; return its process, or ``{"error": ...}``."""
        info = TrialInfo(**start.info)
        if start.code is not None:
            stack = contextlib.ExitStack()
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="detcore-code-"))
            self._closed_at_end.append(stack)
            unpack_code(start.code, Path(folder))
            info = dataclasses.replace(info, model_dir=folder)
        self._lease_s = start.lease_s
        self._lease_ends = time.monotonic() + start.lease_s
        threading.Thread(target=self._watch_lease, name="detcore-lease", daemon=True).start()
        try:
            if start.log_header is not None:
                self._source = LogSource(info, start.log_header)
            group = start_rank(
                info,
                self._environment(start, info),
                rank=start.place.rank,
                home=Path(start.home),
                on_output=self._take_line,
                disabled_plugins=start.disabled,
                allowed_plugins=start.allowed,
            )
        except (DetcoreError, OSError) as error:
            return {"error": str(error)}
        process = describe_process(group.pid)
        self._group = group
        threading.Thread(target=self._follow, args=(group,), name="detcore-follow").start()
        return process

    def _environment(self, start: Start, info: TrialInfo) -> dict[str, str]:
        here = child_environment({}, without=_RAYS_OWN)
        if start.machine == machine_id():
            # As with workers that the runner starts itself.
            found = dict(start.environment)
        else:
            found = {**here, **{
                name: value for name, value in start.environment.items()
                if name.startswith(_PASSED_ON)
            }}  # fmt: skip
            found.pop("OMP_NUM_THREADS", None)
        variables = dict(start.variables)
        if here.get(_DEVICES):
            variables[_DEVICES] = here[_DEVICES]  # the devices that Ray gave to this actor
        elif start.machine != machine_id():
            variables.pop(_DEVICES, None)  # those of the runner's machine
        place = start.place
        interface = find_interface(self._address)
        told = rank_variables(
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
        for name, asked in start.stores.items():
            if name not in services:
                raise WorkerError(
                    f"rank {place.rank} runs on a node without the plugin of the rendezvous "
                    f"{name!r}, which rank 0 has.\nInstall the same plugins on all nodes."
                )
            opened = services[name].open(start.places, self._stores.get(name, asked))
            self._closed_at_end.append(opened)
            gradients = info.settings.gradients
            told.update(opened.variables(place, interface=interface, gradients=gradients))
        found = drop_outer_job_variables(found, place, num_cores=start.num_cpus or None)
        return {**found, **told, **variables}

    def prepare_stores(
        self,
        places: Sequence[RankPlace],
        disabled: frozenset[str],
        allowed: frozenset[str] | None,
    ) -> list[str]:
        """Keep the values of all rendezvous services; of rank 0, before any begins.

        Returns:
            The names of the services.
        """
        services = find_services(disabled_plugins=disabled, allowed_plugins=allowed)
        self._stores = {name: each.make_store(places) for name, each in services.items()}
        return list(services)

    def store_get(self, service: str, scope: str, key: str) -> bytes | None:
        """Return a value of a rendezvous service, or None if it is not set yet."""
        return self._stores[service].get(scope, key)

    def store_put(self, service: str, scope: str, key: str, value: bytes) -> bool:
        """Keep a value of a rendezvous service."""
        return self._stores[service].put(scope, key, value)

    def store_delete(self, service: str, scope: str, key: str) -> None:
        """Record that a worker has left a scope of a rendezvous service."""
        self._stores[service].delete(scope, key)

    def _take_line(self, rank: int, stream: str, line: str) -> None:
        with self._changed:
            # A worker that prints faster than its output is taken has to wait.
            while self._num_waiting > _MAX_WAITING:
                self._changed.wait()
            self._lines.append((stream, line))
            self._num_waiting += len(line)
            self._changed.notify_all()

    def _follow(self, group: WorkerGroup) -> None:
        """Collect the worker's events and its part of the log until it ends."""
        while True:
            select.select([group.fileno()], [], [], _WATCH_S)
            with self._group_lock:
                events = group.poll()
            log = self._read_log()
            if events or log:
                with self._changed:
                    self._events += [{**each.fields, "type": each.type} for each in events]
                    self._log += log
                    self._changed.notify_all()
            if not group.is_alive:
                break
        with self._group_lock:
            self._group = None
        code = group.close()
        for each in self._closed_at_end:
            each.close()
        log = self._read_log(is_over=True)
        with self._changed:
            self._log += log
            self._code = code
            self._changed.notify_all()

    def _read_log(self, *, is_over: bool = False) -> list[tuple[int, bytes]]:
        """Return new parts of the trial's log: one while it is written, all at its end."""
        found: list[tuple[int, bytes]] = []
        while self._source is not None:
            part = self._source.read(is_over=is_over)
            if not part[1]:
                break
            found.append(part)
            if not is_over:
                break
        return found

    def take(self, number: int, heard: float | None) -> Batch:
        """Return the next batch as soon as the worker has output; an empty one after a while.

        A call with the same number returns the same batch again, because an answer may get lost.

        Args:
            number: Of the batch: one more than the last one that has come.
            heard: `Batch.clock` of that one. Nothing else prolongs the worker's lease, so that the
                other end knows when it is over.
        """
        if heard is not None:
            self._lease_ends = heard + self._lease_s
        if self._batch is not None and self._batch.number == number:
            return self._batch
        with self._changed:
            self._changed.wait_for(
                lambda: self._lines or self._events or self._log or self._code is not None,
                min(_HOLD_S, self._lease_s / 6),
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

    def tell(self, number: int, kind: str, value: Any) -> None:
        """Hand something on to the worker; once for each number, in their order.

        Args:
            number: Counts from 0.
            kind: ``"reply"``, ``"signal"`` or ``"kill"``.
            value: The fields of a reply, or the number of a signal.
        """
        with self._group_lock:
            if number <= self._last_told:
                return
            self._last_told = number
            if self._group is None:
                return
            if kind == "reply":
                self._group.reply(**value)
            elif kind == "signal":
                self._group.signal(value)
            else:
                self._group.kill()

    def _watch_lease(self) -> None:
        """End the worker, and this process, when the runner was not heard for too long."""
        while time.monotonic() < self._lease_ends:
            if self._code is not None:
                return
            time.sleep(_WATCH_S)
        group = self._group
        if group is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group.pid, signal.SIGKILL)
        print("detcore-ray: heard nothing of the runner; the worker was ended", file=sys.stderr)
        os._exit(_EXIT_UNHEARD)
