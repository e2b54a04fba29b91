"""``detcore model``: the model registry."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from detcore.cli.command_groups import CommandGroup
from detcore.cli.output import (
    Column,
    Format,
    NumberColumn,
    confirm,
    format_options,
    json_option,
    pick_fields,
    print_data,
    print_fields,
    print_json,
    print_line,
    print_table,
    printable,
    yes_option,
)
from detcore.cli.record_access import master_option, open_client, open_records, uuid_shortener
from detcore.contract.errors import NotFoundError

if TYPE_CHECKING:
    from detcore.cli.cli_context import CliContext
    from detcore.client.registered_model import Model
    from detcore.records import Database, ModelRecord, ModelVersionRecord


_MODEL_FIELDS = (
    "id", "name", "description", "labels", "metadata", "archived", "num_versions", "created_at",
    "updated_at",
)  # fmt: skip
_VERSION_FIELDS = (
    "number", "checkpoint_uuid", "name", "comment", "notes", "metadata", "created_at", "updated_at",
)  # fmt: skip
_EXAMPLES = """
\b
Examples:
  detcore model create digits --description "digit classifier" --metadata data=v3
  detcore model register-version digits $(detcore experiment best 3 --uuid)
  detcore model list --sort updated --descending
  detcore model describe digits
  detcore model register-version digits 6d1c --master http://host:8080
"""
_metadata_option = click.option(
    "--metadata", multiple=True, metavar="KEY=VALUE", help="Custom metadata (repeatable)."
)
_SORTS = ("id", "name", "description", "created", "updated")


@click.group("model", cls=CommandGroup, epilog=_EXAMPLES)
def model_group() -> None:
    """Register checkpoints as numbered versions of models.

    A model is identified by its name or its id. Registered checkpoints are never deleted by
    retention.
    """


def _find_model(database: Database, name: str) -> ModelRecord:
    """Return a model by its name, or by its id if no model has this name."""
    try:
        return database.get_model(name)
    except NotFoundError:
        if not name.isdecimal():
            raise
        return database.get_model(int(name))


@contextlib.contextmanager
def _open_model(obj: CliContext, name: str) -> Iterator[Model]:
    """Open a model by its name or id, to change it."""
    with open_records(obj) as database:
        record = _find_model(database, name)
    with open_client(obj) as client:
        yield client.get_model(record.id)


def _read_metadata(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` pairs. Valid JSON is decoded, and any other value is a string."""
    metadata: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise click.UsageError(f"expected KEY=VALUE, such as data=v3, got {pair!r}")
        try:
            metadata[key] = json.loads(text, parse_constant=_reject_constant)
        except ValueError:
            metadata[key] = text
    return metadata


def _reject_constant(text: str) -> None:
    raise ValueError(text)  # NaN and Infinity are not JSON, so they stay strings


@model_group.command()
@click.argument("name")
@click.option("--description", default="", metavar="TEXT", help="Short description.")
@_metadata_option
@click.option("--label", "labels", multiple=True, metavar="LABEL", help="Label (repeatable).")
@json_option
@master_option
def create(
    obj: CliContext,
    name: str,
    description: str,
    metadata: tuple[str, ...],
    labels: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create a model with a unique name."""
    pairs = _read_metadata(metadata)
    with open_records(obj) as database, open_client(obj) as client:
        model = client.create_model(name, description, pairs, labels)
        record = database.get_model(model.name)
    if as_json:
        print_json(pick_fields(_MODEL_FIELDS, record))
    else:
        print_line(f"created model {record.name} (id {record.id})")


@model_group.command("list")
@click.option("--name", default="", metavar="TEXT", help="List models whose name contains TEXT.")
@click.option(
    "--description",
    default="",
    metavar="TEXT",
    help="List models whose description contains TEXT.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="LABEL",
    help="List models with this label (repeatable).",
)
@click.option("--all", "show_all", is_flag=True, help="Include archived models.")
@click.option(
    "--sort", type=click.Choice(_SORTS), default="name", show_default=True, help="Sort key."
)
@click.option("--descending", is_flag=True, help="Sort in descending order.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Maximum number of models.")
@format_options
@master_option
def list_command(
    obj: CliContext,
    *,
    name: str,
    description: str,
    labels: tuple[str, ...],
    show_all: bool,
    sort: str,
    descending: bool,
    limit: int | None,
    form: Format,
) -> None:
    """List models."""
    from detcore.types import ModelOrderBy, ModelSortBy

    by = {
        "id": ModelSortBy.UNSPECIFIED,
        "name": ModelSortBy.NAME,
        "description": ModelSortBy.DESCRIPTION,
        "created": ModelSortBy.CREATION_TIME,
        "updated": ModelSortBy.LAST_UPDATED_TIME,
    }
    with open_records(obj) as database:
        records = database.list_models(
            sort_by=by[sort],
            order_by=ModelOrderBy.DESCENDING if descending else ModelOrderBy.ASCENDING,
            name=name,
            description=description,
            labels=labels,
            archived=None if show_all else False,
        )[:limit]
    rows = [pick_fields(_MODEL_FIELDS, record) for record in records]
    if print_data(form, {"models": rows}, rows, ["id", "name"]):
        return
    if not records:
        click.echo("No models found.\nCreate a model:  detcore model create NAME", err=True)
    else:
        _print_models(records)


@model_group.command()
@click.argument("name")
@format_options
@master_option
def describe(obj: CliContext, name: str, form: Format) -> None:
    """Show a model and its versions, latest first. --csv prints only the versions."""
    with open_records(obj) as database:
        record = _find_model(database, name)
        versions = database.list_versions(record.id)
        short = uuid_shortener(database)
    plain = [pick_fields(_VERSION_FIELDS, version) for version in versions]
    document = {**pick_fields(_MODEL_FIELDS, record), "versions": plain}
    if not print_data(form, document, plain, ["number", "checkpoint_uuid"]):
        _print_model(record, versions, short)


@model_group.command("register-version")
@click.argument("name")
@click.argument("uuid")
@click.option("--name", "version_name", default="", metavar="TEXT", help="Version name.")
@click.option("--comment", default="", metavar="TEXT", help="One-line description.")
@click.option("--notes", default="", metavar="TEXT", help="Longer notes.")
@_metadata_option
@json_option
@master_option
def register_version(
    obj: CliContext,
    /,
    name: str,
    uuid: str,
    version_name: str,
    comment: str,
    notes: str,
    metadata: tuple[str, ...],
    as_json: bool,
) -> None:
    """Register a checkpoint as the next version of a model.

    UUID may be a unique prefix.
    """
    pairs = _read_metadata(metadata)
    with open_records(obj) as database, open_client(obj) as client:
        model = _find_model(database, name)
        full_uuid = database.get_checkpoint(uuid).uuid
        checkpoint = client.get_model(model.id).register_version(
            full_uuid, name=version_name, comment=comment, notes=notes, metadata=pairs
        )
        versions = database.list_versions(model.id)
    number = checkpoint.model_version
    if as_json:
        (version,) = (version for version in versions if version.number == number)
        print_json({"model": model.name, **pick_fields(_VERSION_FIELDS, version)})
    else:
        print_line(f"{model.name} version {number}: checkpoint {full_uuid}")


@model_group.command("set-description")
@click.argument("name")
@click.argument("text")
@master_option
def set_description(obj: CliContext, name: str, text: str) -> None:
    """Replace the description of a model."""
    with _open_model(obj, name) as model:
        model.set_description(text)
    print_line(f"{model.name}: {model.description}")


@model_group.command("set-metadata")
@click.argument("name")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@master_option
def set_metadata(obj: CliContext, name: str, pairs: tuple[str, ...]) -> None:
    """Add to the metadata of a model. Values of existing keys are replaced.

    A value that is valid JSON (3, true, [1, 2]) is decoded. Any other value is a string.
    """
    metadata = _read_metadata(pairs)
    with _open_model(obj, name) as model:
        model.add_metadata(metadata)
    print_line(f"{model.name}: {_metadata_text(model.metadata)}")


@model_group.command("remove-metadata")
@click.argument("name")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@master_option
def remove_metadata(obj: CliContext, name: str, keys: tuple[str, ...]) -> None:
    """Remove keys from the metadata of a model. Missing keys are ignored."""
    with _open_model(obj, name) as model:
        model.remove_metadata(keys)
    print_line(f"{model.name}: {_metadata_text(model.metadata)}")


def _add_archive_command(what: str, summary: str, outcome: str) -> None:
    @model_group.command(what, help=summary)
    @click.argument("name")
    @master_option
    def command(obj: CliContext, name: str) -> None:
        with _open_model(obj, name) as model:
            getattr(model, what)()
        print_line(f"{model.name} is {outcome}")


_add_archive_command(
    "archive", "Archive a model. Lists hide it, and it cannot be changed.", "archived"
)
_add_archive_command("unarchive", "Unarchive a model.", "no longer archived")


@model_group.command()
@click.argument("name")
@click.option(
    "--version", "number", type=click.IntRange(min=1), metavar="N", help="Delete only this version."
)
@yes_option
@master_option
def delete(obj: CliContext, name: str, number: int | None, yes: bool) -> None:
    """Delete a model with all versions, or one version. Checkpoints are not deleted."""
    with _open_model(obj, name) as model:
        target = f"model {model.name} and its {model.num_versions} versions"
        if number is not None:
            target = f"version {number} of model {model.name}"
        confirm(printable(f"Delete {target}?"), yes=yes)
        if number is None:
            model.delete()
        else:
            model.delete_version(number)
    print_line(f"deleted {target}")


def _metadata_text(metadata: Any) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in metadata.items()) or "-"


def _print_models(records: list[ModelRecord]) -> None:
    print_table(
        [
            NumberColumn("ID", style="bold"),
            Column("NAME", wrap=True),
            "VERSIONS",
            Column("LABELS", wrap=True),
            Column("DESCRIPTION", wrap=True),
            "UPDATED",
        ],
        [
            [
                record.id,
                f"{record.name} (archived)" if record.archived else record.name,
                record.num_versions,
                " ".join(record.labels),
                record.description,
                record.updated_at,
            ]
            for record in records
        ],
    )


def _print_model(
    record: ModelRecord, versions: list[ModelVersionRecord], short: Callable[[str], str]
) -> None:
    print_line(f"model {record.id}: {record.name}", style="bold")
    fields = {
        "description": record.description or "-",
        "labels": " ".join(record.labels) or None,
        "metadata": _metadata_text(record.metadata) if record.metadata else None,
        "created": record.created_at,
        "updated": record.updated_at,
        "archived": "yes (cannot be changed)" if record.archived else None,
    }
    print_fields(fields, indent=2)
    print_line("\nVersions", style="bold")
    if not versions:
        print_line("none yet")
        return
    print_table(
        [
            NumberColumn("VERSION", style="bold"),
            "CHECKPOINT",
            Column("NAME", wrap=True),
            Column("COMMENT", wrap=True),
            "REGISTERED",
        ],
        [
            [
                version.number,
                short(version.checkpoint_uuid),
                version.name,
                version.comment,
                version.created_at,
            ]
            for version in versions
        ],
    )
