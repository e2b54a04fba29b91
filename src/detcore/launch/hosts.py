"""The machines of a job: reading their names, and how a command is to run on them."""

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
    """A machine, and how many workers it takes."""

    name: str
    slots: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostsRequest:
    """How a command is to run on several machines.

    Attributes:
        hosts: The machines; rank 0 runs on the first one.
        num_workers: How many processes in all; at most the sum of the slots.
        network_interface: Its name on all machines; None: the one that leads to the hosts.
        environment: All variables for the workers. None is a secret, so that they may stand on
            command lines.
        stop_s: Returns how long the workers may take to end after a signal, in seconds.
    """

    hosts: Sequence[Host]
    num_workers: int
    network_interface: str | None
    environment: Mapping[str, str]
    stop_s: Callable[[int], float]


class HostsJob(Protocol):
    """A command that runs on several machines; the rules are those of `Workers`.

    Attributes:
        pid: Process id of the local process that started it.
        failure: Once it is closed, the reason why no worker was started; None if one was.
    """

    @property
    def pid(self) -> int: ...

    @property
    def failure(self) -> str | None: ...

    @property
    def is_alive(self) -> bool:
        """Whether any has not ended, as of the last `poll`."""

    @property
    def is_ending(self) -> bool:
        """Whether those that are left were asked to end."""

    @property
    def first_failed(self) -> int | None:
        """The rank that failed first, None while none has."""

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """Return the ranks that ended since, with their codes."""

    def signal(self, number: int, *, with_children: bool = False) -> None:
        """Pass a signal on to every worker."""

    def end(self) -> None:
        """Ask all to end; kill those that are still there after the grace time."""

    def kill(self) -> None:
        """End all workers at once."""

    def close(self) -> int:
        """Wait for the end; return the code of the job."""


@runtime_checkable
class SupportsHosts(Protocol):
    """A rendezvous service for which ``detcore launch`` takes ``--hosts``."""

    def start_on_hosts(
        self, command: Sequence[str], request: HostsRequest, sink: Sink, /
    ) -> HostsJob:
        """Start a command on several machines.

        Args:
            command: Program and arguments; the same paths on all machines.
            request: The machines, and how the command is to run there.
            sink: Takes the lines that the workers print.

        Raises:
            ConfigError: If this machine lacks a program.
            WorkerError: If a host has no address, or the command does not start.
        """


def parse_hosts(text: str) -> list[Host]:
    """Read ``"a:4,b:4"``; a name alone has one slot.

    Raises:
        ConfigError: If it cannot be read, or names a machine twice.
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


def exported_environment(variables: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the variables for workers on other machines.

    Only those known to hold no secret: they may end up on command lines, where every user of a
    machine can read them.

    Args:
        variables: Values that replace those of this process.
        names: More variables to pass on, requested by the user.

    Raises:
        ConfigError: If one of `names` is not set or seems to hold a secret.
    """
    found = drop_outer_job_variables(child_environment(variables), place_ranks(["here"])[0])
    kept = {
        name: value
        for name, value in found.items()
        if _HARMLESS.fullmatch(name) and not _is_secret(name, value)
    }
    for name in names:
        if name not in found:
            raise ConfigError(f"--env {name}: this variable is not set")
        value = found[name]
        if _is_secret(name, value):
            raise ConfigError(
                f"--env {name}: its value would stand on command lines, where every user of a "
                "machine can read it.\nPut it into a file on each machine instead."
            )
        kept[name] = value
    return kept


def _is_secret(name: str, value: str) -> bool:
    from detcore.record_descriptions import visible_config

    return name == _JOB_KEY or visible_config({name: value}) != {name: value}
