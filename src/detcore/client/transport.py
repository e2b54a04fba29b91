"""Connection of the client to a record store: the records of this machine, or a server.

Values are JSON, so the store may be remote.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from detcore.environment import read_environment, read_variables

if TYPE_CHECKING:
    from detcore.client.embedded_transport import EmbeddedTransport
    from detcore.client.http.http_transport import HttpTransport


Transport: TypeAlias = "EmbeddedTransport | HttpTransport"
_PORT = "DET_MASTER_PORT"


class TransportUser:
    """Base class of objects that use a store: the store that created them, or `connect`.

    Attributes:
        master: The address of the master, or None.
    """

    def __init__(self, master: str | None, transport: Transport | None) -> None:
        self.master = master
        self._given_transport = transport

    @property
    def _transport(self) -> Transport:
        if self._given_transport is None:
            self._given_transport = connect(self.master)
        return self._given_transport


def connect(
    master: str | None,
    user: str | None = None,
    password: str | None = None,
    *,
    certificate: Path | None = None,
) -> Transport:
    """Return the transport for a master. It connects and logs in on first use.

    Args:
        master: Address of the master. None or "" means the master in the environment, or the
            records of this machine (``DETCORE_DB``, or SQLite in ``DETCORE_HOME``).
        user: User name on the server.
        password: The user's password; default: see `detcore.client.http.find_credentials`.
        certificate: File (PEM) of trusted authorities; default: from the environment.

    Raises:
        ConfigError: If the address is invalid, or the file does not exist.
    """
    environment = read_environment()
    address = master or environment.master
    if not address:
        from detcore.client.embedded_transport import EmbeddedTransport

        return EmbeddedTransport(environment)
    if certificate is not None:
        environment = dataclasses.replace(environment, master_certificate=certificate)
    from detcore.client.http.http_transport import connect as connect_to_server

    return connect_to_server(
        address if master else _with_port(address), user, password, environment
    )


def _with_port(address: str) -> str:
    """Return the environment's master with its port, because a variable may name only a host."""
    port = read_variables([_PORT]).get(_PORT)
    host = address.rpartition("]")[2] if address.startswith("[") else address
    if port is None or "://" in address or ":" in host:
        return address
    return f"{address}:{port}"
