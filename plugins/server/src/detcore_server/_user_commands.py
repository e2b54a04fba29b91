"""The commands of ``detcore user`` that set passwords."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from detcore.cli import read_new_password

if TYPE_CHECKING:
    from detcore.cli import CliContext

__all__ = ["user_group"]

_password_stdin = click.option(
    "--password-stdin", is_flag=True, help="Read the password from standard input: for scripts."
)


@click.group("user")
def user_group() -> None:
    """Commands that are added to ``detcore user``."""


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
    password = check_new_password(read_new_password(password_stdin))
    with obj.open_database() as database:
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

    with obj.open_database() as database:
        user = database.get_user(name)
        password = check_new_password(read_new_password(password_stdin))
        database.update_user(user.id, password_hash=hash_password(password))
    click.echo(f"user {name} has another password, and no token")
