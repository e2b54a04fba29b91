"""``detcore user``: manage the users of a server, and log in to one."""

from __future__ import annotations

import contextlib
import datetime
import sys
from typing import TYPE_CHECKING

import click

from detcore.cli import (
    Column,
    CommandGroup,
    choose_format,
    format_options,
    print_csv,
    print_fields,
    print_json,
    print_table,
)
from detcore.describe import format_time
from detcore.errors import ConfigError, ForbiddenError, UnauthenticatedError

if TYPE_CHECKING:
    from detcore.cli import CliContext
    from detcore_server._database import ServerDatabase

__all__ = ["user_group"]

_EXAMPLES = """
\b
Examples:
  detcore user create ada --admin
  detcore user create ci --password-stdin < password.txt
  detcore user login https://server:8080 --user ada
  detcore user whoami https://server:8080
"""
_LOOPBACK = ("localhost", "127.", "::1")

_password_stdin = click.option(
    "--password-stdin", is_flag=True, help="Read the password from standard input: for scripts."
)
_url = click.argument("url", required=False)


@click.group("user", cls=CommandGroup, epilog=_EXAMPLES)
def user_group() -> None:
    """Manage the users of the server of this record store; log in to a server.

    create, list, password, activate and deactivate work on the records themselves (DETCORE_HOME,
    DETCORE_DB), where the server runs. login, logout, change-password and whoami send a request to
    a server, from anywhere; the default of URL is the variable DETCORE_MASTER.
    """


@user_group.command("create")
@click.argument("name")
@click.option("--admin", is_flag=True, help="May manage the others.")
@_password_stdin
@click.pass_obj
def create(obj: CliContext, name: str, admin: bool, password_stdin: bool) -> None:
    """Add a user; asks for the password."""
    from detcore_server._accounts import check_name, check_new_password
    from detcore_server._passwords import hash_password

    check_name(name)
    password = check_new_password(_read_new_password(password_stdin))
    with _open(obj) as database:
        database.create_user(name, password_hash=hash_password(password), is_admin=admin)
    click.echo(f"user {name} may log in")


@user_group.command("password")
@click.argument("name")
@_password_stdin
@click.pass_obj
def set_password(obj: CliContext, name: str, password_stdin: bool) -> None:
    """Give a user another password, who is then logged out everywhere."""
    from detcore_server._accounts import check_new_password
    from detcore_server._passwords import hash_password

    with _open(obj) as database:
        user = database.get_user(name)
        password = check_new_password(_read_new_password(password_stdin))
        database.update_user(user.id, password_hash=hash_password(password))
    click.echo(f"user {name} has another password, and no token")


@user_group.command("list")
@format_options
@click.pass_obj
def list_users(obj: CliContext, as_json: bool, as_csv: bool) -> None:
    """List the users."""
    form = choose_format(as_json, as_csv)
    with _open(obj) as database:
        users = database.list_users()
    rows = [
        {
            "id": user.id,
            "name": user.name,
            "is_admin": user.is_admin,
            "is_active": user.is_active,
            "created_at": user.created_at,
        }
        for user in users
    ]
    if form == "json":
        print_json(rows)
    elif form == "csv":
        print_csv(rows, ("id", "name", "is_admin", "is_active", "created_at"))
    else:
        columns = [Column("ID", "right"), Column("NAME"), Column("MAY"), Column("CREATED")]
        print_table(
            columns,
            [
                (
                    str(user.id),
                    user.name,
                    ("administer" if user.is_admin else "use") if user.is_active else "nothing",
                    _time(user.created_at),
                )
                for user in users
            ],
        )


@user_group.command("deactivate")
@click.argument("name")
@click.pass_obj
def deactivate(obj: CliContext, name: str) -> None:
    """Stop a user from logging in; a running server notices within seconds."""
    with _open(obj) as database:
        database.update_user(name, is_active=False)
    click.echo(f"user {name} may not log in, and has no token")


@user_group.command("activate")
@click.argument("name")
@click.pass_obj
def activate(obj: CliContext, name: str) -> None:
    """Let a user log in again."""
    with _open(obj) as database:
        database.update_user(name, is_active=True)
    click.echo(f"user {name} may log in")


@user_group.command("login")
@_url
@click.option("--user", metavar="NAME", help="Who; default: DETCORE_USER, or asked for.")
@_password_stdin
@click.pass_obj
def log_in(obj: CliContext, url: str | None, user: str | None, password_stdin: bool) -> None:
    """Log in to a server, and keep its token in DETCORE_HOME.

    Asks for the password, which is not kept. The token stays good until `logout`, or until it
    expires.
    """
    from detcore import remote

    where = _server(obj, url)
    certificate = remote.trusted_authorities(obj.environment)
    _warn_of_plain_text(where)
    name = user or obj.environment.user or _ask("User")
    password = _read_password() if password_stdin else _ask("Password", hidden=True)
    try:
        kept = remote.log_in_at(where, name, password, certificate=certificate)
    except ForbiddenError as error:
        if str(error) != "invalid credentials":
            raise
        raise ForbiddenError(
            f"the server {where} refuses user {name!r} with this password.\n"
            "Try again; an administrator can set another one: detcore user password NAME"
        ) from error
    remote.keep_token(obj.environment.home, where, kept)
    click.echo(f"logged in to {where} as {name} until {_time(kept.expires_at)}")


@user_group.command("logout")
@_url
@click.option("--user", metavar="NAME", help="Who; default: who logged in last.")
@click.pass_obj
def log_out(obj: CliContext, url: str | None, user: str | None) -> None:
    """Revoke the stored token of a server, and delete it."""
    from detcore import remote

    where = _server(obj, url)
    kept = remote.kept_token(obj.environment.home, where, user)
    if kept is None:
        click.echo(f"nobody is logged in to {where} from here" if user is None else
                   f"{user} is not logged in to {where} from here")  # fmt: skip
        return
    # Forgotten first, so that it is not used again even if the request fails.
    remote.forget_token(obj.environment.home, where, kept.user)
    certificate = remote.trusted_authorities(obj.environment)
    session = remote.Session(where, kept.token, certificate=certificate)
    try:
        with contextlib.suppress(UnauthenticatedError):
            session.ask("POST", "/api/detcore/v1/logout")
    except remote.ServerAway as error:
        raise remote.ServerAway(
            f"the token of {kept.user} is forgotten here, but {where} does not answer.\n"
            f"A copy of it would be good until {_time(kept.expires_at)}."
        ) from error
    finally:
        session.close()
    click.echo(f"logged out of {where} as {kept.user}")


@user_group.command("change-password")
@_url
@click.option("--user", metavar="NAME", help="Who; default: who logged in last.")
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
    from detcore import remote

    where = _server(obj, url)
    kept = remote.kept_token(obj.environment.home, where, user)
    if kept is None:
        raise UnauthenticatedError(
            f"nobody is logged in to {where} from here.\nLog in: detcore user login {where}"
        )
    _warn_of_plain_text(where)
    old = _read_password() if password_stdin else _ask("Password so far", hidden=True)
    new = _read_new_password(password_stdin)
    certificate = remote.trusted_authorities(obj.environment)
    session = remote.Session(where, kept.token, certificate=certificate)
    try:
        said = session.ask(
            "POST", "/api/detcore/v1/me/password", json_body={"old": old, "new": new}
        )
    finally:
        session.close()
    remote.keep_token(
        obj.environment.home,
        where,
        remote.KeptToken(user=kept.user, token=said["token"], expires_at=said["expires_at"]),
    )
    click.echo(f"{kept.user} has another password at {where}")


@user_group.command("whoami")
@_url
@click.option("--user", metavar="NAME", help="Who; default: who logged in last.")
@click.pass_obj
def whoami(obj: CliContext, url: str | None, user: str | None) -> None:
    """Show the user that a server recognizes you as."""
    from detcore import remote

    where = _server(obj, url)
    session = remote.open_session(where, user, obj.environment)
    try:
        said = session.ask("GET", "/api/detcore/v1/me")
    finally:
        session.close()
    print_fields(
        {
            "user": str(said["name"]),
            "administrator": "yes" if said["is_admin"] else "no",
            "server": f"{where} (detcore {said['version']})",
            "until": _time(said["expires_at"]),
        }
    )


def _open(obj: CliContext) -> ServerDatabase:
    from detcore_server._database import ServerDatabase

    return ServerDatabase.open(obj.environment.database_url)


def _time(seconds: float) -> str:
    return format_time(datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc))


def _server(obj: CliContext, url: str | None) -> str:
    from detcore_remote import normal_url

    given = url or obj.environment.master
    if not given:
        raise ConfigError(
            "which server? Give its address, such as http://host:8080, or set DETCORE_MASTER."
        )
    return normal_url(given)


def _warn_of_plain_text(url: str) -> None:
    host = url.partition("://")[2].strip("[")
    if url.startswith("http://") and not host.startswith(_LOOPBACK):
        click.echo(
            f"warning: {url} is not encrypted: the password can be read on its way. "
            "Use https:// where the server has a certificate.",
            err=True,
        )


def _read_new_password(from_stdin: bool) -> str:
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
