"""``detcore user``: log in to servers. The commands that work on records are in detcore-server."""

from __future__ import annotations

import contextlib
import datetime
import sys
from typing import TYPE_CHECKING

import click

from detcore.cli.command_groups import CommandGroup, Lazy
from detcore.cli.output import print_fields
from detcore.client.http.credentials import (
    StoredToken,
    delete_token,
    open_session,
    read_stored_token,
    request_token,
    store_token,
    trusted_authorities,
)
from detcore.client.http.http_session import ServerUnavailableError, Session, normalize_url
from detcore.contract.errors import ConfigError, ForbiddenError, UnauthenticatedError
from detcore.record_descriptions import format_time

if TYPE_CHECKING:
    from detcore.cli.cli_context import CliContext


_LOOPBACK = ("localhost", "127.", "::1")

password_option = click.option(
    "--password-stdin", is_flag=True, help="Read the password from standard input: for scripts."
)
_url = click.argument("url", required=False)
_logged_in_user = click.option("--user", metavar="NAME", help="Who; default: who logged in last.")
_EXAMPLES = """
\b
Examples:
  detcore user create ada --admin
  detcore user create ci --password-stdin < password.txt
  detcore user login https://server:8080 --user ada
  detcore user whoami https://server:8080
"""


@click.group(
    "user",
    cls=CommandGroup,
    lazy_commands={
        "create": Lazy(None, "Create a user and prompt for the password."),
        "list": Lazy(None, "List all users."),
        "password": Lazy(None, "Change a user's password and revoke all tokens."),
        "deactivate": Lazy(None, "Disable a user."),
        "activate": Lazy(None, "Enable a user."),
    },
    epilog=_EXAMPLES,
)
def user_group() -> None:
    """Manage the users of the server of this record store; log in to a server.

    create, list, password, activate and deactivate work on the records themselves (DETCORE_HOME,
    DETCORE_DB), where the server runs. login, logout, change-password and whoami send a request to
    a server, from anywhere; the default of URL is the variable DETCORE_MASTER.
    """


@user_group.command("login")
@_url
@click.option("--user", metavar="NAME", help="Who; default: DETCORE_USER, or asked for.")
@password_option
@click.pass_obj
def log_in(obj: CliContext, url: str | None, user: str | None, password_stdin: bool) -> None:
    """Log in to a server, and keep its token in DETCORE_HOME.

    Asks for the password, which is not kept. The token stays good until `logout`, or until it
    expires.
    """
    where = _server(obj, url)
    certificate = trusted_authorities(obj.environment)
    _warn_of_plain_text(where)
    name = user or obj.environment.user or _ask("User")
    password = _read_password() if password_stdin else _ask("Password", hidden=True)
    try:
        kept = request_token(where, name, password, certificate=certificate)
    except ForbiddenError as error:
        if str(error) != "invalid credentials":
            raise
        raise ForbiddenError(
            f"the server {where} refuses user {name!r} with this password.\n"
            "Try again; an administrator can set another one: detcore user password NAME"
        ) from error
    store_token(obj.environment.home, where, kept)
    click.echo(f"logged in to {where} as {name} until {_time(kept.expires_at)}")


@user_group.command("logout")
@_url
@_logged_in_user
@click.pass_obj
def log_out(obj: CliContext, url: str | None, user: str | None) -> None:
    """Revoke the stored token of a server, and delete it."""
    where = _server(obj, url)
    kept = read_stored_token(obj.environment.home, where, user)
    if kept is None:
        click.echo(_not_logged_in(where, user))
        return
    # Forgotten first, so that it is not used again even if the request fails.
    delete_token(obj.environment.home, where, kept.user)
    try:
        with _session_of(obj, where, kept) as session, contextlib.suppress(UnauthenticatedError):
            session.request("POST", "/api/detcore/v1/logout")
    except ServerUnavailableError as error:
        raise ServerUnavailableError(
            f"the token of {kept.user} is forgotten here, but {where} does not answer.\n"
            f"A copy of it would be good until {_time(kept.expires_at)}."
        ) from error
    click.echo(f"logged out of {where} as {kept.user}")


@user_group.command()
@_url
@_logged_in_user
@click.option(
    "--password-stdin",
    is_flag=True,
    help="Read the password so far and the new one, each in a line, from standard input.",
)
@click.pass_obj
def change_password(
    obj: CliContext, url: str | None, user: str | None, password_stdin: bool
) -> None:
    """Change your own password at a server; you are logged out everywhere else."""
    where = _server(obj, url)
    kept = read_stored_token(obj.environment.home, where, user)
    if kept is None:
        raise UnauthenticatedError(
            f"{_not_logged_in(where, user)}.\nLog in: detcore user login {where}"
        )
    _warn_of_plain_text(where)
    old = _read_password() if password_stdin else _ask("Password so far", hidden=True)
    new = read_new_password(password_stdin)
    with _session_of(obj, where, kept) as session:
        said = session.request(
            "POST", "/api/detcore/v1/me/password", json_body={"old": old, "new": new}
        )
    store_token(
        obj.environment.home,
        where,
        StoredToken(user=kept.user, token=said["token"], expires_at=said["expires_at"]),
    )
    click.echo(f"{kept.user} has another password at {where}")


@user_group.command()
@_url
@_logged_in_user
@click.pass_obj
def whoami(obj: CliContext, url: str | None, user: str | None) -> None:
    """Show the user that a server recognizes you as."""
    where = _server(obj, url)
    with contextlib.closing(open_session(where, user, environment=obj.environment)) as session:
        said = session.request("GET", "/api/detcore/v1/me")
    print_fields(
        {
            "user": str(said["name"]),
            "administrator": "yes" if said["is_admin"] else "no",
            "server": f"{where} (detcore {said['version']})",
            "until": _time(said["expires_at"]),
        }
    )


def _server(obj: CliContext, url: str | None) -> str:
    given = url or obj.environment.master
    if not given:
        raise ConfigError(
            "which server? Give its address, such as http://host:8080, or set DETCORE_MASTER."
        )
    return normalize_url(given)


def _not_logged_in(where: str, user: str | None) -> str:
    who = "nobody is" if user is None else f"{user} is not"
    return f"{who} logged in to {where} from here"


def _session_of(
    obj: CliContext, where: str, kept: StoredToken
) -> contextlib.AbstractContextManager[Session]:
    certificate = trusted_authorities(obj.environment)
    return contextlib.closing(Session(where, kept.token, certificate=certificate))


def _time(seconds: float) -> str:
    return format_time(datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc))


def _warn_of_plain_text(url: str) -> None:
    host = url.partition("://")[2].strip("[")
    if url.startswith("http://") and not host.startswith(_LOOPBACK):
        click.echo(
            f"warning: {url} is not encrypted: the password can be read on its way. "
            "Use https:// where the server has a certificate.",
            err=True,
        )


def read_new_password(from_stdin: bool) -> str:
    """Return a new password: the first line of standard input, or asked for twice on a terminal.

    Args:
        from_stdin: Whether to read it from standard input.

    Raises:
        ConfigError: If the two are not the same, or standard input is no terminal to ask on.
    """
    if from_stdin:
        return _read_password()
    password = _ask("Password", hidden=True)
    if _ask("Once more", hidden=True) != password:
        raise ConfigError("the two are not the same: nothing was changed")
    return password


def _read_password() -> str:
    """Return the first line of standard input."""
    return sys.stdin.readline().rstrip("\r\n")


def _ask(what: str, *, hidden: bool = False) -> str:
    if not sys.stdin.isatty():
        missing, option = ("password", "--password-stdin") if hidden else ("user", "--user")
        raise ConfigError(
            f"cannot ask for the {missing}: standard input is not a terminal.\nGive {option}."
        )
    answer: str = click.prompt(what, hide_input=hidden, err=True)
    return answer
