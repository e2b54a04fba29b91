"""Environment variables of the workers of one job on this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detcore.distributed import launcher_variables
from detcore.environment import child_environment, read_variables

if TYPE_CHECKING:
    from detcore.hooks import PluginManager

__all__ = [
    "LocalJob",
    "default_settings",
    "framework_variables",
    "horovod_settings",
    "num_cores",
    "outer_variables",
]

_LOOPBACK = "127.0.0.1"
_HOST = "localhost"
# Left over from an outer job, they would send a worker to the wrong one.
_OUTER_JOB = frozenset(
    {
        "DETCORE_CHIEF_PORT",
        "HOROVOD_CONTROLLER",
        "HOROVOD_ELASTIC",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR",
        "HOROVOD_GLOO_RENDEZVOUS_PORT",
        "HOROVOD_HOSTNAME",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
    }
)


class LocalJob:
    """A job whose workers are all on this machine: its key, and how workers find each other.

    Every job has a new key, which is passed in the environment only.

    Args:
        size: Number of workers; >= 1.
        horovod: Whether ``hvd.init()`` is to work in them. A server on the loopback address runs
            as long as the job.
        torch: Whether ``torch.distributed.init_process_group()`` is to work in them.
    """

    def __init__(self, size: int, *, horovod: bool = False, torch: bool = False) -> None:
        self.size = size
        self._key = secrets.token_hex(32)
        self._stack = contextlib.ExitStack()
        self._rendezvous_port: int | None = None
        self._master_port: int | None = None
        if horovod:
            from detcore.launch._rendezvous import RendezvousServer

            scopes = {"global": size, f"local_{_HOST}": size}
            scopes.update((f"cross_{rank}", 1) for rank in range(size))
            server = RendezvousServer(scopes)
            self._stack.callback(server.close)
            self._rendezvous_port = server.port
        if torch:
            self._master_port = self._reserve_port()

    def _reserve_port(self) -> int:
        # Bound but not listening, it goes to no other process, and rank 0 can still listen on it.
        holder = self._stack.enter_context(socket.socket())
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((_LOOPBACK, 0))
        return int(holder.getsockname()[1])

    def environment(self, rank: int, variables: Mapping[str, str]) -> dict[str, str]:
        """Return all variables of a worker.

        Args:
            rank: Which one, ``0 <= rank < size``.
            variables: More variables; they take precedence.
        """
        told = _numbers("DETCORE_", rank, self.size)
        told["DETCORE_JOB_KEY"] = self._key
        if self._rendezvous_port is not None:
            told.update(_horovod(rank, self.size, self._rendezvous_port))
        if self._master_port is not None:
            told.update(_torch(rank, self.size, self._master_port))
        return child_environment(
            {**told, **variables},
            defaults=default_settings(self.size),
            without=outer_variables(),
        )

    def close(self) -> None:
        """Release ports."""
        self._stack.close()


def outer_variables() -> frozenset[str]:
    """Return the names of variables that would send a worker to the job that this one is in."""
    return launcher_variables() | _OUTER_JOB


def _numbers(prefix: str, rank: int, size: int) -> dict[str, str]:
    numbers = {
        "RANK": rank,
        "SIZE": size,
        "LOCAL_RANK": rank,
        "LOCAL_SIZE": size,
        "CROSS_RANK": 0,
        "CROSS_SIZE": 1,
    }
    return {prefix + name: str(number) for name, number in numbers.items()}


def _horovod(rank: int, size: int, port: int) -> dict[str, str]:
    return {
        **_numbers("HOROVOD_", rank, size),
        "HOROVOD_HOSTNAME": _HOST,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo0" if sys.platform == "darwin" else "lo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": _LOOPBACK,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }


def _torch(rank: int, size: int, port: int) -> dict[str, str]:
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": size,
        "GROUP_RANK": 0,
        "GROUP_WORLD_SIZE": 1,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
    }
    return {
        **{name: str(number) for name, number in numbers.items()},
        "MASTER_ADDR": _LOOPBACK,
        "MASTER_PORT": str(port),
    }


def default_settings(size: int) -> dict[str, str]:
    """Return default values of variables, for those that the user has not set.

    Args:
        size: Number of workers that share this machine.
    """
    defaults = {"PYTHONUNBUFFERED": "1"}
    if size > 1:
        # By themselves the numeric libraries of each worker start a thread per core.
        threads = str(max(1, num_cores() // size))
        defaults.update(OMP_NUM_THREADS=threads, TF_NUM_INTRAOP_THREADS=threads)
    return defaults


def framework_variables(plugins: PluginManager) -> dict[str, str]:
    """Return the variables that frameworks need in their workers, without those the user has set.

    All frameworks are included, because only importing a trial's code shows which one it uses.
    """
    frameworks = plugins.frameworks().values()
    wanted = {name: value for framework in frameworks for name, value in framework.variables}
    given = read_variables(wanted)
    return {name: value for name, value in wanted.items() if name not in given}


def horovod_settings(optimizations: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that configure how Horovod fuses gradients.

    Args:
        optimizations: That section of the experiment file; Horovod chooses the omitted values.
    """
    settings = {}
    threshold = optimizations.get("tensor_fusion_threshold")
    if threshold is not None:
        settings["HOROVOD_FUSION_THRESHOLD"] = str(int(threshold) << 20)
    cycle_time = optimizations.get("tensor_fusion_cycle_time")
    if cycle_time is not None:
        settings["HOROVOD_CYCLE_TIME"] = str(cycle_time)
    if optimizations.get("auto_tune_tensor_fusion"):
        settings["HOROVOD_AUTOTUNE"] = "1"
    return settings


def num_cores() -> int:
    """Return how many CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
