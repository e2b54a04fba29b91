"""``detcore database``: the record store itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from detcore.cli import CommandGroup, print_fields, print_json

if TYPE_CHECKING:
    from detcore.cli import CliContext


_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group("database", cls=CommandGroup)
def database_group() -> None:
    """Copy the record store, restore it, bring it up to date."""


@database_group.command("info")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show_info(obj: CliContext, as_json: bool) -> None:
    """Say where the record store is, and which version it has. Nothing is changed."""
    from detcore_server.commands.backup import describe_database

    info = describe_database(obj.environment.database_url)
    counts = info.pop("counts")
    if as_json:
        print_json({**info, **counts})
        return
    schema, newest = info["schema"] or "none yet", info["newest_schema"]
    is_old = info["schema"] not in (None, newest)
    print_fields(
        {
            "url": info["url"],
            "schema": f"{schema} (upgrade to {newest})" if is_old else schema,
            **{name: str(count) for name, count in counts.items()},
        }
    )


@database_group.command("upgrade")
@click.pass_obj
def upgrade(obj: CliContext) -> None:
    """Bring the record store to the schema of this release, or create it.

    Every command and every server does so automatically; this command lets you choose the time.
    Copy the record store first: an older release refuses it afterwards.
    """
    from detcore.records import Database
    from detcore_server.commands.backup import describe_database

    url = obj.environment.database_url
    before = describe_database(url)
    Database.open(url).close()
    if before["schema"] == before["newest_schema"]:
        click.echo(f"{before['url']} is up to date: schema {before['schema']}")
    else:
        earlier = before["schema"] or "not there"
        click.echo(f"{before['url']}: schema {before['newest_schema']}, was {earlier}")


@database_group.command("backup")
@click.argument("file", type=_FILE)
@click.pass_obj
def backup(obj: CliContext, file: Path) -> None:
    """Copy the record store to FILE, as it is now, while runs and servers continue.

    FILE must not exist; it is there once the copy is whole and was checked. For PostgreSQL use
    pg_dump.
    """
    from detcore_server.commands.backup import back_up

    size = back_up(obj.environment.database_url, file)
    click.echo(f"{file}: {size} bytes")


@database_group.command("restore")
@click.argument("file", type=_FILE)
@click.option("--replace", is_flag=True, help="Replace the records that are there.")
@click.pass_obj
def restore(obj: CliContext, file: Path, replace: bool) -> None:
    """Make FILE, a copy made by 'backup', the record store.

    End servers and runs first: they would write to the record store that is being replaced.
    """
    from detcore_server.commands.backup import put_back

    put_back(file, obj.environment.database_url, replace=replace)
    click.echo(f"restored from {file}")
