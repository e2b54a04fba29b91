"""Commands of ``detcore user`` that change a server's records."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import click

from detcore.cli import (
    Column,
    format_options,
    password_option,
    print_csv,
    print_json,
    print_table,
    read_new_password,
)
from detcore.record_descriptions import format_time

if TYPE_CHECKING:
    from detcore.cli import CliContext
    from detcore_server.server_database import ServerDatabase


_COLUMNS = ("id", "name", "is_admin", "is_active", "created_at")


@click.group("user")
def user_group() -> None:
    """Manage the users of a server."""


@user_group.command("create")
@click.argument("name")
@click.option("--admin", is_flag=True, help="Allow this user to manage other users.")
@password_option
@click.pass_obj
def create(obj: CliContext, name: str, admin: bool, password_stdin: bool) -> None:
    """Create a user and prompt for the password."""
    from detcore_server.users.accounts import check_name, check_new_password, hash_password

    check_name(name)
    password = check_new_password(read_new_password(password_stdin))
    with _open(obj) as database:
        database.create_user(name, password_hash=hash_password(password), is_admin=admin)
    click.echo(f"user {name} can log in")


@user_group.command("password")
@click.argument("name")
@password_option
@click.pass_obj
def set_password(obj: CliContext, name: str, password_stdin: bool) -> None:
    """Change a user's password and revoke all tokens of the user."""
    from detcore_server.users.accounts import check_new_password, hash_password

    with _open(obj) as database:
        user = database.get_user(name)
        password = check_new_password(read_new_password(password_stdin))
        database.update_user(user.id, password_hash=hash_password(password))
    click.echo(f"changed the password of user {name} and revoked all tokens")


@user_group.command("list")
@format_options
@click.pass_obj
def list_users(obj: CliContext, form: str) -> None:
    """List all users."""
    with _open(obj) as database:
        users = database.list_users()
    rows = [{name: getattr(user, name) for name in _COLUMNS} for user in users]
    if form == "json":
        print_json(rows)
    elif form == "csv":
        print_csv(rows, _COLUMNS)
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
    """Disable a user. A running server applies this within seconds."""
    with _open(obj) as database:
        database.update_user(name, is_active=False)
    click.echo(f"disabled user {name} and revoked all tokens")


@user_group.command("activate")
@click.argument("name")
@click.pass_obj
def activate(obj: CliContext, name: str) -> None:
    """Enable a user."""
    with _open(obj) as database:
        database.update_user(name, is_active=True)
    click.echo(f"user {name} can log in")


def _open(obj: CliContext) -> ServerDatabase:
    from detcore_server.server_database import ServerDatabase

    return ServerDatabase.open(obj.environment.database_url)


def _time(seconds: float) -> str:
    return format_time(datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc))
