"""Hosts of a job: parsing their names, and the request to run a command on them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from detcore.contract.errors import ConfigError
from detcore.contract.launch import Sink
from detcore.environment import child_environment
from detcore.launch.job_variables import drop_outer_job_variables, place_ranks

_PATTERN = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)(?::([0-9]+))?")
_HARMLESS = re.compile(
    r"(HOME|USER|LOGNAME|SHELL|PATH|LD_LIBRARY_PATH|LANG|LC_\w+|TZ|TERM|TMPDIR|VIRTUAL_ENV"
    r"|CONDA_PREFIX|SSH_AUTH_SOCK|KRB5CCNAME|DET_CHIEF_IP"
    r"|DETCORE_(HOME|PLUGINS|DISABLE_PLUGINS)"
    r"|(PYTHON|HOROVOD_|NCCL_|GLOO_|TF_|XLA_|KERAS_|OMP_|KMP_|MKL_|OPENBLAS_|CUDA_|NVIDIA_)\w*)"
)
_JOB_KEY = "DETCORE_JOB_KEY"


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """A machine and its number of worker slots."""

    name: str
    slots: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostsRequest:
    """Request to run a command on several machines.

    Attributes:
        hosts: The machines. Rank 0 runs on the first machine.
        num_workers: Total number of processes, at most the sum of the slots.
        network_interface: Name of the network interface on all machines; None: the interface that
            reaches the hosts.
        environment: All variables for the workers, without secrets, so they may appear on command
            lines.
        stop_s: Returns the number of seconds that workers may run after a signal.
    """

    hosts: Sequence[Host]
    num_workers: int
    network_interface: str | None
    environment: Mapping[str, str]
    stop_s: Callable[[int], float]


class HostsJob(Protocol):
    """A command that runs on several machines. Its rules are those of `Workers`.

    Attributes:
        pid: Process id of the local process that started it.
        failure: After `close`, the reason why no worker was started, or None.
    """

    @property
    def pid(self) -> int: ...

    @property
    def failure(self) -> str | None: ...

    @property
    def is_alive(self) -> bool:
        """Whether a worker was running at the last `poll`."""

    @property
    def is_ending(self) -> bool:
        """Whether the remaining workers have received SIGTERM from `end`."""

    @property
    def first_failed(self) -> int | None:
        """The rank that failed first; None if no rank has failed."""

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """Return the newly exited ranks with their codes."""

    def signal(self, number: int, *, with_children: bool = False) -> None:
        """Pass a signal on to every worker."""

    def end(self) -> None:
        """Send SIGTERM to all workers. Those that still run after the grace time are killed."""

    def kill(self) -> None:
        """Kill all workers immediately."""

    def close(self) -> int:
        """Wait for all workers, and return the exit code of the job."""


@runtime_checkable
class SupportsHosts(Protocol):
    """A rendezvous service with which ``detcore launch`` accepts ``--hosts``."""

    def start_on_hosts(
        self, command: Sequence[str], request: HostsRequest, sink: Sink, /
    ) -> HostsJob:
        """Start a command on several machines.

        Args:
            command: Program and arguments; the same paths on all machines.
            request: The machines and settings.
            sink: Receives the output lines of the workers.

        Raises:
            ConfigError: If this machine lacks a program.
            WorkerError: If a host has no address, or the command does not start.
        """


def parse_hosts(text: str) -> list[Host]:
    """Parse hosts such as ``"a:4,b:4"``. A name without a number has one slot.

    Raises:
        ConfigError: If a host cannot be parsed or occurs twice.
    """
    hosts: list[Host] = []
    for part in text.split(","):
        match = _PATTERN.fullmatch(part.strip())
        if match is None or match[2] == "0":
            raise ConfigError(f"--hosts: {part.strip()!r} is not NAME:SLOTS, such as node1:4")
        if match[1] in [host.name for host in hosts]:
            raise ConfigError(f"--hosts: {match[1]!r} is named twice; add up its slots")
        hosts.append(Host(match[1], int(match[2] or 1)))
    return hosts


def select_exported_variables(variables: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the variables for workers on other machines.

    Variables that may contain secrets are left out, because the variables may appear on command
    lines, where every user of a machine can read them.

    Args:
        variables: Values that replace those of this process.
        names: More variables to pass on, requested by the user.

    Raises:
        ConfigError: If a variable of `names` is not set or seems to contain a secret.
    """
    candidates = drop_outer_job_variables(child_environment(variables), place_ranks(["here"])[0])
    exported = {
        name: value
        for name, value in candidates.items()
        if _HARMLESS.fullmatch(name) and not _is_secret(name, value)
    }
    for name in names:
        if name not in candidates:
            raise ConfigError(f"--env {name}: this variable is not set")
        value = candidates[name]
        if _is_secret(name, value):
            raise ConfigError(
                f"--env {name}: its value would appear on command lines, where every user of a "
                "machine can read it.\nPut it into a file on each machine instead."
            )
        exported[name] = value
    return exported


def _is_secret(name: str, value: str) -> bool:
    from detcore.record_descriptions import visible_config

    return name == _JOB_KEY or visible_config({name: value}) != {name: value}
