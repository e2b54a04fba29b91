"""Settings of a server."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.environment import Environment
    from detcore.plugins import PluginManager


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        environment: Location of records and files.
        plugins: Available plugins.
        host: Interface to listen on. The default is reachable only from this machine.
        port: Port to listen on. 0: a free port.
        certificate: TLS certificate chain file (PEM). None: plain HTTP.
        key: Private key file (PEM).
        token_lifetime_s: Lifetime of a login token in seconds.
        max_body_bytes: Maximum size of a request body, except for code uploads.
        public_url: URL for trials and users. The default is ``http(s)://host:port``.
        proxy: Address of the reverse proxy whose client headers are trusted.
        max_connections: Maximum number of open connections. Further connections are rejected.
        log_level: Log level of the server. See ``detcore serve --help``.
        max_experiments: Maximum number of submitted experiments that run concurrently.
        launcher: Default launcher of submitted experiments. None: the local launcher.
    """

    environment: Environment
    plugins: PluginManager
    host: str = "127.0.0.1"
    port: int = 8080
    certificate: Path | None = None
    key: Path | None = None
    token_lifetime_s: float = 7 * 24 * 3600.0
    max_body_bytes: int = 8 * 2**20
    public_url: str | None = None
    proxy: str | None = None
    max_connections: int = 1000
    log_level: str = "info"
    max_experiments: int = 1
    launcher: str | None = None

    @property
    def url(self) -> str:
        """URL for trials and users."""
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        scheme = "http" if self.certificate is None else "https"
        # "All interfaces" is not an address, but the loopback interface always exists.
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        host = f"[{host}]" if ":" in host else host
        return f"{scheme}://{host}:{self.port}"
