"""Define ranks and the collectives between them."""

from __future__ import annotations

import dataclasses
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from detcore.contract.errors import DistributedError
from detcore.contract.values import COLLECTIVE_TIMEOUT_S, CONNECT_TIMEOUT_S

if TYPE_CHECKING:
    from detcore.distributed.launcher_settings import LauncherSettings, Numbers
    from detcore.distributed.rank_group import Group

__all__ = ["DistributedContext"]

T = TypeVar("T")


class DistributedContext:
    """A worker's ranks within its trial, and small exchanges between the workers.

    Pass all six numbers or none; none means one worker. The collectives are for coordination, in
    addition to those of a training framework. All ranks must call the same collectives in the same
    order, from one thread at a time. A rank gets its own value back as the same object, and the
    values of other ranks as private copies.

    Workers of one machine connect through a private directory of their user and open no network
    port. Across machines, all connect to one port of rank 0 and prove that they know the job's key.

    Attributes:
        rank: Index of this worker over all nodes.
        size: Number of workers over all nodes (world size).
        local_rank: Index of this worker on its node.
        local_size: Number of workers on this node (local world size).
        cross_rank: Index of this node.
        cross_size: Number of nodes.
    """

    def __init__(
        self,
        *,
        rank: int | None = None,
        size: int | None = None,
        local_rank: int | None = None,
        local_size: int | None = None,
        cross_rank: int | None = None,
        cross_size: int | None = None,
        chief_ip: str | None = None,
        pub_port: int | None = None,
        pull_port: int | None = None,
        port_offset: int = 0,
        force_tcp: bool = False,
        key: bytes | str | None = None,
        timeout_s: float = COLLECTIVE_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        """Connect to the other workers; return when all of them have joined.

        Args:
            rank: Index of this worker over all nodes, ``0 <= rank < size``.
            size: Number of workers over all nodes.
            local_rank: Index of this worker on its node.
            local_size: Number of workers on this node; nodes may differ.
            cross_rank: Index of this node.
            cross_size: Number of nodes.
            chief_ip: Address of rank 0; required for more than one node.
            pub_port: Port on which rank 0 listens if TCP is used. Default: chosen by the system on
                one node and with Horovod, 12360 otherwise.
            pull_port: Accepted for compatibility; one port is enough.
            port_offset: Added to the port, to separate jobs.
            force_tcp: Accepted for compatibility; workers of one node need no port.
            key: The job's secret, the same on all its workers; default: the variable
                ``DETCORE_JOB_KEY``. Required across nodes. On one node it separates jobs. Without
                a key, the launcher's variables or the parent process separate them.
            timeout_s: Seconds for which a collective waits for a worker that is alive.
            connect_timeout_s: Seconds to wait until all workers have joined.

        Raises:
            DistributedError: If the numbers are incomplete, or contradict each other or a launcher,
                if a port is in use, or if not all workers join in time.
            PeerLostError: If a worker dies while the workers join.
        """
        from detcore.distributed import launcher_settings as launchers

        ranks = launchers.complete_ranks(rank, size, local_rank, local_size, cross_rank, cross_size)
        if ranks.size > 1:
            launchers.check_assigned(*ranks)
        self._connect(
            ranks,
            launchers.LauncherSettings(
                chief_ip=chief_ip,
                port=pub_port,
                port_offset=port_offset,
                key=key,
                timeout_s=timeout_s,
                connect_timeout_s=connect_timeout_s,
            ),
        )

    def _connect(self, numbers: Numbers, settings: LauncherSettings) -> None:
        from detcore.distributed import launcher_settings as launchers

        launchers.check_numbers(numbers, settings.chief_ip)
        self.rank, self.size, self.local_rank, self.local_size = numbers[:4]
        self.cross_rank, self.cross_size = numbers[4:]
        self._is_closed = False
        self._process = os.getpid()
        self._world_group: Group | None = None
        self._node_group: Group | None = None
        if self.size > 1:
            from detcore.distributed.join import join_groups

            self._world_group, self._node_group = join_groups(numbers, settings)

    @classmethod
    def from_horovod(
        cls, hvd: Any, chief_ip: str | None = None, *, timeout_s: float = COLLECTIVE_TIMEOUT_S
    ) -> DistributedContext:
        """Create a context with the ranks of a Horovod module, such as ``horovod.tensorflow``.

        If the module has ``broadcast_object``, Horovod distributes a new job key and the port of
        rank 0.

        Args:
            hvd: The module, after ``hvd.init()``.
            chief_ip: Address of rank 0; default: the variable ``DET_CHIEF_IP``.
            timeout_s: Seconds for which a collective waits for a worker that is alive.
        """
        from detcore.distributed import launcher_settings as launchers

        numbers = launchers.Numbers(*(int(getattr(hvd, name)()) for name in launchers.NAMES))
        settings = launchers.LauncherSettings(
            chief_ip=launchers.read_chief_ip(chief_ip), timeout_s=timeout_s
        )
        if numbers.size > 1 and hasattr(hvd, "broadcast_object"):
            import secrets

            def announce(value: Any) -> Any:
                return hvd.broadcast_object(value, root_rank=0)

            key = announce(settings.get_job_key() or secrets.token_bytes(32))
            settings = dataclasses.replace(settings, key=key, announce=announce)
        return cls._from_numbers(numbers, settings)

    @classmethod
    def from_env(
        cls, chief_ip: str | None = None, *, timeout_s: float = COLLECTIVE_TIMEOUT_S
    ) -> DistributedContext:
        """Create a context with the ranks that a launcher assigned, or for one worker if none did.

        Recognises `detcore launch` and `run`, torchrun, DeepSpeed, Horovod, ``TF_CONFIG``, JAX,
        Open MPI and Slurm.

        Args:
            chief_ip: Address of rank 0; default: ``DET_CHIEF_IP``, or the launcher's value.
            timeout_s: Seconds for which a collective waits for a worker that is alive.

        Raises:
            DistributedError: If launchers disagree.
        """
        from detcore.distributed import launcher_settings as launchers

        place = launchers.find_launcher_ranks()
        if place is None:
            return cls()
        chief_ip = launchers.read_chief_ip(chief_ip) or place.chief_ip
        return cls._from_numbers(
            place.numbers, launchers.LauncherSettings(chief_ip=chief_ip, timeout_s=timeout_s)
        )

    @classmethod
    def from_deepspeed(
        cls, chief_ip: str | None = None, *, timeout_s: float = COLLECTIVE_TIMEOUT_S
    ) -> DistributedContext:
        """Create a context with the ranks from the variables of DeepSpeed's launcher.

        Args:
            chief_ip: Address of rank 0; default: the variable ``DET_CHIEF_IP``.
            timeout_s: Seconds for which a collective waits for a worker that is alive.
        """
        return cls._from_launcher("DeepSpeed", chief_ip, timeout_s)

    @classmethod
    def from_torch_distributed(
        cls, chief_ip: str | None = None, *, timeout_s: float = COLLECTIVE_TIMEOUT_S
    ) -> DistributedContext:
        """Create a context with the ranks from the variables of torchrun.

        Args:
            chief_ip: Address of rank 0; default: the variable ``DET_CHIEF_IP``.
            timeout_s: Seconds for which a collective waits for a worker that is alive.
        """
        return cls._from_launcher("torchrun", chief_ip, timeout_s)

    @classmethod
    def _from_launcher(
        cls, launcher: str, chief_ip: str | None, timeout_s: float
    ) -> DistributedContext:
        from detcore.distributed import launcher_settings as launchers

        settings = launchers.LauncherSettings(
            chief_ip=launchers.read_chief_ip(chief_ip), timeout_s=timeout_s
        )
        return cls._from_numbers(launchers.read_numbers(launcher), settings)

    @classmethod
    def _from_numbers(cls, numbers: Numbers, settings: LauncherSettings) -> DistributedContext:
        context = cls.__new__(cls)
        context._connect(numbers, settings)
        return context

    def get_rank(self) -> int:
        """Return the index of this worker over all nodes."""
        return self.rank

    def get_local_rank(self) -> int:
        """Return the index of this worker on its node."""
        return self.local_rank

    def get_size(self) -> int:
        """Return the number of workers over all nodes."""
        return self.size

    def get_num_agents(self) -> int:
        """Return the number of nodes."""
        return self.cross_size

    def gather(self, stuff: T) -> list[T] | None:
        """Return every worker's value in rank order on the chief, None elsewhere.

        Raises:
            PeerLostError: If a worker has exited. All collectives below raise the same errors.
            CollectiveTimeoutError: If a worker that is alive does not call it in time.
            CollectiveMismatchError: If workers called different collectives.
        """
        return self._exchange_values(self._world_group, "gather", "gather", stuff)

    def gather_local(self, stuff: T) -> list[T] | None:
        """Return the values of this node's workers on its first worker, None elsewhere."""
        return self._exchange_values(self._node_group, "gather_local", "gather", stuff)

    def allgather(self, stuff: T) -> list[T]:
        """Return every worker's value in rank order (all_gather)."""
        return self._exchange_values(self._world_group, "allgather", "allgather", stuff) or []

    def allgather_local(self, stuff: T) -> list[T]:
        """Return the values of this node's workers in rank order."""
        return self._exchange_values(self._node_group, "allgather_local", "allgather", stuff) or []

    def broadcast(self, stuff: T) -> T:
        """Return the chief's value on every worker."""
        return (
            self._exchange_values(self._world_group, "broadcast", "broadcast", stuff) or [stuff]
        )[0]

    def broadcast_local(self, stuff: T | None = None) -> T | None:
        """Return the value of this node's first worker on all workers of the node."""
        return (
            self._exchange_values(self._node_group, "broadcast_local", "broadcast", stuff)
            or [stuff]
        )[0]

    def barrier(self) -> None:
        """Return once every worker has called this."""
        self._exchange_values(self._world_group, "barrier", "barrier", None)

    def close(self) -> None:
        """End the exchanges, also for the other workers; idempotent."""
        self._close_groups("closed its context")

    def __enter__(self) -> DistributedContext:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close_groups("closed its context" if error is None else f"raised {error!r}"[:500])

    def _close_groups(self, reason: str) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for group in (self._node_group, self._world_group):
            if group is not None:
                group.close(reason)

    def _exchange_values(
        self, group: Group | None, name: str, mode: str, stuff: T
    ) -> list[T] | None:
        if self._is_closed:
            raise DistributedError(
                f"{name}() was called on a DistributedContext that is closed.\n"
                "Call it before close(), inside the with-block of the context."
            )
        if group is None:
            return [stuff]
        if self._process != os.getpid():
            raise DistributedError(
                f"{name}() was called in process {os.getpid()}, a forked child of {self._process}, "
                "which created the DistributedContext.\n"
                "Collectives cannot be called from a forked child. Call them in the process that "
                "created the context."
            )
        return group.exchange(name, mode, stuff)
