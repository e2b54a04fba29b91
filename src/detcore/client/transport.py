"""The record store that the client asks: this machine's records, or a server.

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


class Connected:
    """An object that asks a store: the one it came from, or else the one `connect` finds.

    Attributes:
        master: The address of a master that it was given, or None.
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
    """Return the transport for a master; it opens and logs in only when it is used.

    Args:
        master: Its address; None or "": the environment's, and where that names none, the records
            of this machine (``DETCORE_DB``, or SQLite in ``DETCORE_HOME``).
        user: User name on the server.
        password: The user's password; default: see `detcore.client.http.find_credentials`.
        certificate: File of the authorities to trust (PEM); default: the environment's.

    Raises:
        ConfigError: If the address cannot be used, or the file is not there.
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
    """Return the environment's master with its port: one of the variables names a host alone."""
    said = read_variables([_PORT]).get(_PORT)
    host = address.rpartition("]")[2] if address.startswith("[") else address
    if said is None or "://" in address or ":" in host:
        return address
    return f"{address}:{said}"
