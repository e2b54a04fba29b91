"""The settings of a server."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.environment import Environment
    from detcore.plugins import PluginManager


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of a server.

    Attributes:
        environment: Where its records and files are.
        plugins: The plugins that it may use.
        host: Interface to listen on; the default is this machine alone.
        port: Port to listen on; 0: a free one.
        certificate: File of the TLS certificate chain (PEM); None: plain HTTP.
        key: File of its private key (PEM).
        token_lifetime_s: How long the token of a log-in is valid.
        max_body_bytes: The largest body of a request, except for uploads of code.
        public_url: URL for trials and users; default: ``http(s)://host:port``.
        proxy: Address of the reverse proxy whose headers about the client are trusted.
        max_connections: How many connections may be open; more are refused.
        log_level: Level of the server's own log; see ``detcore serve --help``.
        max_experiments: How many submitted experiments run at once; others wait.
        launcher: Launcher for the workers of submitted experiments that name none; None: this
            machine.
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
        # All interfaces have no name; this one of them is always there.
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        host = f"[{host}]" if ":" in host else host
        return f"{scheme}://{host}:{self.port}"
