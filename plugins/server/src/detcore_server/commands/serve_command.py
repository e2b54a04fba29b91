"""``detcore serve``: the HTTP server of the record store."""

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


def _seconds(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)", value.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 1.0 <= seconds <= 3650 * 86400.0:
        raise click.BadParameter(f"{value!r} is no time such as 90s, 30m, 12h or 7d (to 3650d).")
    return seconds


@click.command(epilog=_EXAMPLES)
@click.option("--host", default="127.0.0.1", show_default=True, help="Interface to listen on.")
@click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0: a free one."
)
@click.option("--certificate", type=_FILE, metavar="FILE", help="TLS certificate chain (PEM).")
@click.option("--key", type=_FILE, metavar="FILE", help="Private key of the certificate (PEM).")
@click.option("--public-url", metavar="URL", help="How trials and people reach the server.")
@click.option(
    "--proxy",
    metavar="ADDRESS",
    help="Address of a reverse proxy: its X-Forwarded-For and -Proto are believed.",
)
@click.option(
    "--token-lifetime",
    default="7d",
    show_default=True,
    callback=_seconds,
    metavar="TIME",
    help="How long a log-in is good for: 90s, 30m, 12h, 7d.",
)
@click.option(
    "--max-body-mb",
    default=8,
    show_default=True,
    type=click.IntRange(1, 1024),
    help="Largest body of a request, but for uploads of code.",
)
@click.option(
    "--max-connections",
    default=1000,
    show_default=True,
    type=click.IntRange(10, 100_000),
    help="More connections at once are refused.",
)
@click.option(
    "--max-experiments",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Handed-in experiments that run at once.",
)
@click.option("--launcher", metavar="NAME", help="Starts the workers of handed-in experiments.")
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="What to log on stderr; requests are listed from info on.",
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
    """Serve records and a page over HTTP, and run experiments that are submitted.

    It listens on this machine alone unless --host says otherwise. At SIGTERM or Ctrl-C it answers
    the requests in progress and ends.
    """
    from detcore_server.commands.server_process import serve as run
    from detcore_server.server_settings import ServerSettings

    if certificate is not None and key is not None:
        check_certificate(certificate, key)
    elif certificate is not None or key is not None:
        raise ConfigError("--certificate and --key belong together: give both, or none")
    plugins = obj.plugin_manager()
    launcher, known = options["launcher"], plugins.launchers()
    if launcher is not None and launcher not in known:
        raise ConfigError(
            f"--launcher is {launcher!r}, and nothing installed provides that.\n"
            f"Launchers here: {', '.join(sorted(known))}.\n"
            "Others come with plugins: detcore plugins list."
        )
    settings = ServerSettings(
        environment=obj.environment,
        plugins=plugins,
        certificate=certificate,
        key=key,
        token_lifetime_s=token_lifetime,
        max_body_bytes=max_body_mb * _MB,
        public_url=None if public_url is None else _checked_url(public_url),
        **options,
    )
    with _listen(settings.host, settings.port) as listener:
        settings = dataclasses.replace(settings, port=listener.getsockname()[1])
        for line in _warnings(obj, settings):
            click.echo(line, err=True)
        run(settings, listener, lambda: click.echo(f"detcore serves at {settings.url}"))


def _checked_url(url: str) -> str:
    from detcore.client.http import normalize_url

    if "://" not in url:
        raise ConfigError(
            f"--public-url {url!r} has no http:// or https://: browsers and trials are told it as "
            "it is.\nIt looks like https://host:8080"
        )
    return normalize_url(url)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        where = f"port {port} of {host}"
        if error.errno == errno.EADDRINUSE:
            reason = f"{where} is in use already.\nEnd what uses it, or choose another: --port"
        elif error.errno == errno.EACCES:
            reason = (
                f"{where} needs rights that this process has not.\n"
                "Choose a port above 1023, and let a reverse proxy have the low one."
            )
        elif (error.errno or 0) < 0 or error.errno == errno.EADDRNOTAVAIL:  # < 0: no such name
            reason = (
                f"{host!r} is no address of this machine.\n"
                "Give one of its own: 127.0.0.1 for itself alone, 0.0.0.0 for all that it has."
            )
        else:
            reason = f"{where} cannot be listened on: {error}"
        raise RunError(f"the server cannot start: {reason}") from error


def _warnings(obj: CliContext, settings: ServerSettings) -> list[str]:
    """Return the warnings to print before the first request."""
    lines = []
    if not settings.host.startswith("127.") and settings.host not in ("localhost", "::1"):
        if settings.certificate is None:
            lines.append(
                f"warning: {settings.host} can be reached from other machines, and there is no "
                "TLS: passwords, tokens and records can be read on their way. Give --certificate "
                "and --key, or listen on 127.0.0.1 behind a reverse proxy that has them."
            )
        if settings.public_url is None and settings.host in ("", "0.0.0.0", "::"):
            lines.append(
                "warning: without --public-url trials on other machines are not told where the "
                "server is."
            )
    from detcore_server.server_database import ServerDatabase

    with ServerDatabase.open(obj.environment.database_url) as database:
        if not any(user.is_active for user in database.list_users()):
            lines.append(
                "nobody may log in yet. Make a user, with the same DETCORE_HOME and DETCORE_DB: "
                "detcore user create NAME --admin"
            )
    return lines


def check_certificate(certificate: Path, key: Path) -> None:
    """Check that a server can use a certificate.

    Args:
        certificate: File of the chain (PEM), the server's own certificate first.
        key: File of the private key (PEM).

    Raises:
        ConfigError: If it cannot, with the reason.
    """
    for option, path in (("--certificate", certificate), ("--key", key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"the file {path} of {option} cannot be read: {error.strerror}.\n"
                "The user that runs the server must be able to read it."
            ) from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
    except ssl.SSLError as error:
        raise ConfigError(
            f"the certificate {certificate} and the private key {key} cannot be used: "
            f"{error.reason or error}.\n"
            "Both must be PEM files that were made together, the certificate with -----BEGIN "
            "CERTIFICATE----- and the key with -----BEGIN PRIVATE KEY----- (or RSA, or EC PRIVATE "
            "KEY). In a chain the server's own certificate is the first one."
        ) from error


def _no_password() -> str:
    # Without it OpenSSL would ask on the terminal.
    raise ConfigError(
        "the private key of --key is encrypted, and a server has nobody to ask for the password.\n"
        "Write it without one, in a file that only the server's user can read: "
        "openssl pkey -in KEY -out PLAIN_KEY"
    )
