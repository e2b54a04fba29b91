"""Command group ``detcore database``."""

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
    """Back up, restore and upgrade the record store."""


@database_group.command("info")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show_info(obj: CliContext, as_json: bool) -> None:
    """Show the location and schema version of the record store, without changing it."""
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
    """Upgrade the record store to the schema of this release, or create it.

    Every command and server upgrades it automatically. This command lets you choose the time. Back
    up the record store first, because older releases cannot read it afterwards.
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
    """Back up the record store to FILE while runs and servers continue.

    FILE must not exist. It appears only after the backup is complete and checked. For PostgreSQL
    use pg_dump.
    """
    from detcore_server.commands.backup import back_up

    size = back_up(obj.environment.database_url, file)
    click.echo(f"{file}: {size} bytes")


@database_group.command("restore")
@click.argument("file", type=_FILE)
@click.option("--replace", is_flag=True, help="Replace the existing records.")
@click.pass_obj
def restore(obj: CliContext, file: Path, replace: bool) -> None:
    """Restore the record store from FILE, a backup from 'detcore database backup'.

    Stop servers and runs first, because they would write to the record store during the restore.
    """
    from detcore_server.commands.backup import restore_backup

    restore_backup(file, obj.environment.database_url, replace=replace)
    click.echo(f"restored from {file}")
