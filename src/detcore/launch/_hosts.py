"""The machines of a job: reading their names, and starting a command on them."""

from __future__ import annotations

import fcntl
import re
import socket
import struct
from collections.abc import Iterable, Mapping

from detcore.contract.errors import ConfigError
from detcore.contract.launch import Host
from detcore.environment import child_environment

__all__ = ["exported_environment", "interface_with", "parse_hosts"]

_PATTERN = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)(?::([0-9]+))?")
_SIOCGIFADDR = 0x8915
_HARMLESS = re.compile(
    r"(HOME|USER|LOGNAME|SHELL|PATH|LD_LIBRARY_PATH|LANG|LC_\w+|TZ|TERM|TMPDIR|VIRTUAL_ENV"
    r"|CONDA_PREFIX|SSH_AUTH_SOCK|KRB5CCNAME|DET_CHIEF_IP"
    r"|DETCORE_(HOME|PLUGINS|DISABLE_PLUGINS)"
    r"|(PYTHON|HOROVOD_|NCCL_|GLOO_|TF_|XLA_|KERAS_|OMP_|KMP_|MKL_|OPENBLAS_|CUDA_|NVIDIA_)\w*)"
)
_JOB_KEY = "DETCORE_JOB_KEY"


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


def interface_with(address: str) -> str | None:
    """Return the name of this machine's network interface with an IPv4 address, None if none has.

    Args:
        address: Such as ``"10.0.0.7"``; all of ``127.*`` belongs to the loopback interface.
    """
    if address.startswith("127."):
        address = "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                request = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # it has no IPv4 address
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None


def exported_environment(
    variables: Mapping[str, str], names: Iterable[str], without: Iterable[str]
) -> dict[str, str]:
    """Return the variables for workers on other machines.

    Only those known to hold no secret: they may end up on command lines, where every user of a
    machine can read them.

    Args:
        variables: Values that replace those of this process.
        names: More variables to pass on, requested by the user.
        without: Names of variables to leave out.

    Raises:
        ConfigError: If one of `names` is not set or seems to hold a secret.
    """
    found = child_environment(variables, without=without)
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
    from detcore._secrets import mask_config

    return name == _JOB_KEY or mask_config({name: value}) != {name: value}
