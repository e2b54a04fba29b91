"""``detcore user``: log in to servers. Commands that change records are in detcore-server."""

from __future__ import annotations

import contextlib
import datetime
import shlex
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
    "--password-stdin", is_flag=True, help="Read the password from standard input (for scripts)."
)
_url = click.argument("url", required=False)
_logged_in_user = click.option(
    "--user", metavar="NAME", help="User name.  [default: the user who logged in last]"
)
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
    """Manage the users of a server, and log in to a server.

    create, list, password, activate and deactivate change the records (DETCORE_HOME, DETCORE_DB).
    Run them where the server runs. login, logout, change-password and whoami send requests to a
    server. The default of URL is the environment variable DETCORE_MASTER.
    """


@user_group.command("login")
@_url
@click.option("--user", metavar="NAME", help="User name.  [default: DETCORE_USER, or prompt]")
@password_option
@click.pass_obj
def log_in(obj: CliContext, url: str | None, user: str | None, password_stdin: bool) -> None:
    """Log in to a server, and store its token in DETCORE_HOME.

    The command prompts for the password, which is not stored. The token is valid until it expires
    or until `logout`.
    """
    where = _find_server_url(obj, url)
    certificate = trusted_authorities(obj.environment)
    _warn_of_plain_text(where)
    name = user or obj.environment.user or _prompt_for("User")
    password = _read_password() if password_stdin else _prompt_for("Password", hidden=True)
    try:
        token = request_token(where, name, password, certificate=certificate)
    except ForbiddenError as error:
        if str(error) != "invalid credentials":
            raise
        raise ForbiddenError(
            f"the server {where} rejected user {name!r} with this password.\n"
            "Try again. An administrator can set a new password: "
            f"detcore user password {shlex.quote(name)}"
        ) from error
    store_token(obj.environment.home, where, token)
    click.echo(f"logged in to {where} as {name} until {_format_expiry(token.expires_at)}")


@user_group.command("logout")
@_url
@_logged_in_user
@click.pass_obj
def log_out(obj: CliContext, url: str | None, user: str | None) -> None:
    """Revoke the stored token of a server, and delete it."""
    where = _find_server_url(obj, url)
    token = read_stored_token(obj.environment.home, where, user)
    if token is None:
        click.echo(_not_logged_in(where, user))
        return
    # Deleted first, so that it is not used again even if the request fails.
    delete_token(obj.environment.home, where, token.user)
    try:
        with _open_session(obj, where, token) as session, contextlib.suppress(UnauthenticatedError):
            session.request("POST", "/api/detcore/v1/logout")
    except ServerUnavailableError as error:
        raise ServerUnavailableError(
            f"the token of {token.user} was deleted here, but {where} does not respond.\n"
            f"A copy of the token would be valid until {_format_expiry(token.expires_at)}."
        ) from error
    click.echo(f"logged out of {where} as {token.user}")


@user_group.command()
@_url
@_logged_in_user
@click.option(
    "--password-stdin",
    is_flag=True,
    help="Read two lines from standard input: the current and the new password.",
)
@click.pass_obj
def change_password(
    obj: CliContext, url: str | None, user: str | None, password_stdin: bool
) -> None:
    """Change your password on a server. You are logged out everywhere else."""
    where = _find_server_url(obj, url)
    token = read_stored_token(obj.environment.home, where, user)
    if token is None:
        raise UnauthenticatedError(
            f"{_not_logged_in(where, user)}.\nLog in: detcore user login {where}"
        )
    _warn_of_plain_text(where)
    old = _read_password() if password_stdin else _prompt_for("Current password", hidden=True)
    new = read_new_password(password_stdin)
    with _open_session(obj, where, token) as session:
        answer = session.request(
            "POST", "/api/detcore/v1/me/password", json_body={"old": old, "new": new}
        )
    store_token(
        obj.environment.home,
        where,
        StoredToken(user=token.user, token=answer["token"], expires_at=answer["expires_at"]),
    )
    click.echo(f"changed the password of {token.user} on {where}")


@user_group.command()
@_url
@_logged_in_user
@click.pass_obj
def whoami(obj: CliContext, url: str | None, user: str | None) -> None:
    """Show the user as whom you are logged in to a server."""
    where = _find_server_url(obj, url)
    with contextlib.closing(open_session(where, user, environment=obj.environment)) as session:
        answer = session.request("GET", "/api/detcore/v1/me")
    print_fields(
        {
            "user": str(answer["name"]),
            "administrator": "yes" if answer["is_admin"] else "no",
            "server": f"{where} (detcore {answer['version']})",
            "until": _format_expiry(answer["expires_at"]),
        }
    )


def _find_server_url(obj: CliContext, url: str | None) -> str:
    address = url or obj.environment.master
    if not address:
        raise ConfigError(
            "missing the address of the server.\n"
            "Pass an address such as http://host:8080, or set DETCORE_MASTER."
        )
    return normalize_url(address)


def _not_logged_in(where: str, user: str | None) -> str:
    return f"{user or 'no user'} is{' not' if user else ''} logged in to {where}"


def _open_session(
    obj: CliContext, where: str, token: StoredToken
) -> contextlib.AbstractContextManager[Session]:
    certificate = trusted_authorities(obj.environment)
    return contextlib.closing(Session(where, token.token, certificate=certificate))


def _format_expiry(seconds: float) -> str:
    return format_time(datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc))


def _warn_of_plain_text(url: str) -> None:
    host = url.partition("://")[2].strip("[")
    if url.startswith("http://") and not host.startswith(_LOOPBACK):
        click.echo(
            f"warning: {url} is not encrypted, so others on the network can read the password. "
            "Use https:// if the server has a certificate.",
            err=True,
        )


def read_new_password(from_stdin: bool) -> str:
    """Return a new password: a line of standard input, or typed twice on a terminal.

    Args:
        from_stdin: Whether to read it from standard input.

    Raises:
        ConfigError: If the typed passwords do not match, or standard input is not a terminal.
    """
    if from_stdin:
        return _read_password()
    password = _prompt_for("Password", hidden=True)
    if _prompt_for("Repeat password", hidden=True) != password:
        raise ConfigError("the passwords do not match; nothing was changed")
    return password


def _read_password() -> str:
    """Return the first line of standard input."""
    return sys.stdin.readline().rstrip("\r\n")


def _prompt_for(what: str, *, hidden: bool = False) -> str:
    if not sys.stdin.isatty():
        missing, option = ("password", "--password-stdin") if hidden else ("user", "--user")
        raise ConfigError(
            f"cannot prompt for the {missing}: standard input is not a terminal.\nPass {option}."
        )
    answer: str = click.prompt(what, hide_input=hidden, err=True)
    return answer
