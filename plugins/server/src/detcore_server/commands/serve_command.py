"""Command ``detcore serve``."""

from __future__ import annotations

import dataclasses
import errno
import re
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detcore.errors import ConfigError, RunError

if TYPE_CHECKING:
    from detcore.cli import CliContext
    from detcore_server.server_settings import ServerSettings


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_FILE = click.Path(path_type=Path)
_MB = 2**20
_EXAMPLES = """
\b
Examples:
  detcore user create ada --admin
  detcore serve
  detcore serve --host 0.0.0.0 --certificate chain.pem --key key.pem --public-url https://host:8080
"""


def _parse_duration(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)", value.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 1.0 <= seconds <= 3650 * 86400.0:
        raise click.BadParameter(
            f"{value!r} is not a duration such as 90s, 30m, 12h or 7d (maximum 3650d)."
        )
    return seconds


@click.command(epilog=_EXAMPLES)
@click.option("--host", default="127.0.0.1", show_default=True, help="Interface to listen on.")
@click.option(
    "--port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port. 0 = a free port.",
)
@click.option("--certificate", type=_FILE, metavar="FILE", help="TLS certificate chain (PEM).")
@click.option("--key", type=_FILE, metavar="FILE", help="Private key of the certificate (PEM).")
@click.option("--public-url", metavar="URL", help="URL at which trials and users reach the server.")
@click.option(
    "--proxy",
    metavar="ADDRESS",
    help="Reverse proxy whose X-Forwarded-For and X-Forwarded-Proto headers are trusted.",
)
@click.option(
    "--token-lifetime",
    default="7d",
    show_default=True,
    callback=_parse_duration,
    metavar="TIME",
    help="Lifetime of a login, such as 90s, 30m, 12h or 7d.",
)
@click.option(
    "--max-body-mb",
    default=8,
    show_default=True,
    type=click.IntRange(1, 1024),
    help="Maximum size of a request body, except for code uploads.",
)
@click.option(
    "--max-connections",
    default=1000,
    show_default=True,
    type=click.IntRange(10, 100_000),
    help="Maximum number of open connections.",
)
@click.option(
    "--max-experiments",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Maximum number of submitted experiments that run concurrently.",
)
@click.option("--launcher", metavar="NAME", help="Default launcher of submitted experiments.")
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Log level on stderr. Requests are logged at level info.",
)
@click.pass_obj
def serve(
    obj: CliContext,
    /,
    certificate: Path | None,
    key: Path | None,
    token_lifetime: float,
    max_body_mb: int,
    public_url: str | None,
    **options: Any,
) -> None:
    """Serve records and web pages over HTTP, and run submitted experiments.

    The server is reachable only from this machine unless you set --host. SIGTERM or Ctrl-C ends it
    after the requests in progress.
    """
    from detcore_server.commands.server_process import serve as run
    from detcore_server.server_settings import ServerSettings

    if certificate is not None and key is not None:
        check_certificate(certificate, key)
    elif certificate is not None or key is not None:
        raise ConfigError("--certificate and --key must be used together")
    plugins = obj.plugin_manager()
    launcher, launchers = options["launcher"], plugins.launchers()
    if launcher is not None and launcher not in launchers:
        raise ConfigError(
            f"unknown launcher {launcher!r}; installed: {', '.join(sorted(launchers))}.\n"
            "Plugins provide other launchers. List the plugins with: detcore plugins list"
        )
    settings = ServerSettings(
        environment=obj.environment,
        plugins=plugins,
        certificate=certificate,
        key=key,
        token_lifetime_s=token_lifetime,
        max_body_bytes=max_body_mb * _MB,
        public_url=None if public_url is None else _check_url(public_url),
        **options,
    )
    with _open_listener(settings.host, settings.port) as listener:
        settings = dataclasses.replace(settings, port=listener.getsockname()[1])
        for line in _list_warnings(obj, settings):
            click.echo(line, err=True)
        run(settings, listener, lambda: click.echo(f"detcore serves at {settings.url}"))


def _check_url(url: str) -> str:
    from detcore.client.http import normalize_url

    if "://" not in url:
        raise ConfigError(
            f"--public-url {url!r} must start with http:// or https://. Browsers and trials use it "
            "unchanged.\nExample: --public-url https://host:8080"
        )
    return normalize_url(url)


def _open_listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        endpoint = f"port {port} of {host}"
        if error.errno == errno.EADDRINUSE:
            reason = (
                f"{endpoint} is in use.\nStop the process that uses it, or choose another --port"
            )
        elif error.errno == errno.EACCES:
            reason = (
                f"{endpoint} requires privileges that this process does not have.\n"
                "Choose a port above 1023 and put a reverse proxy in front of the server."
            )
        elif (error.errno or 0) < 0 or error.errno == errno.EADDRNOTAVAIL:  # < 0: unknown host name
            reason = (
                f"{host!r} is not an address of this machine.\n"
                "Use 127.0.0.1 for access from this machine only, or 0.0.0.0 for all interfaces."
            )
        else:
            reason = f"cannot listen on {endpoint}: {error}"
        raise RunError(f"the server cannot start: {reason}") from error


def _list_warnings(obj: CliContext, settings: ServerSettings) -> list[str]:
    """Return the warnings to print at the start."""
    lines = []
    if not settings.host.startswith("127.") and settings.host not in ("localhost", "::1"):
        if settings.certificate is None:
            lines.append(
                f"warning: {settings.host} is reachable from other machines without TLS, so others "
                "can read passwords, tokens and records. Use --certificate and --key, "
                "or listen on 127.0.0.1 behind a reverse proxy with TLS."
            )
        if settings.public_url is None and settings.host in ("", "0.0.0.0", "::"):
            lines.append(
                "warning: trials on other machines do not know the server's URL. Set it with "
                "--public-url."
            )
    from detcore_server.server_database import ServerDatabase

    with ServerDatabase.open(obj.environment.database_url) as database:
        if not any(user.is_active for user in database.list_users()):
            lines.append(
                "There are no users yet. Create one with the same DETCORE_HOME and DETCORE_DB: "
                "detcore user create NAME --admin"
            )
    return lines


def check_certificate(certificate: Path, key: Path) -> None:
    """Check that a server can use a certificate.

    Args:
        certificate: Certificate chain file (PEM) that starts with the server's certificate.
        key: Private key file (PEM).

    Raises:
        ConfigError: If the certificate or key is invalid.
    """
    for option, path in (("--certificate", certificate), ("--key", key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"cannot read the file {path} of {option}: {error.strerror}.\n"
                "The user that runs the server must be able to read the file."
            ) from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
    except ssl.SSLError as error:
        raise ConfigError(
            f"cannot use the certificate {certificate} with the private key {key}: "
            f"{error.reason or error}.\n"
            "Both must be PEM files that belong together: the certificate with -----BEGIN "
            "CERTIFICATE----- and the key with -----BEGIN PRIVATE KEY----- (or RSA, or EC PRIVATE "
            "KEY). A chain must start with the server's certificate."
        ) from error


def _no_password() -> str:
    # Otherwise OpenSSL would prompt for the password on the terminal.
    raise ConfigError(
        "the private key of --key is encrypted, and the server cannot prompt for the password.\n"
        "Write an unencrypted key to a file that only the server's user can read: "
        "openssl pkey -in KEY -out PLAIN_KEY"
    )
