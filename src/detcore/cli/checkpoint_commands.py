"""``detcore checkpoint``: list, download, verify, repair and delete checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detcore.cli.checkpoint_store import CheckpointStore, open_store, print_checkpoints, prune
from detcore.cli.command_groups import CommandGroup
from detcore.cli.output import (
    Column,
    NumberColumn,
    confirm,
    dry_run_option,
    json_option,
    pick_fields,
    print_fields,
    print_heading,
    print_json,
    print_line,
    print_table,
    yes_option,
)
from detcore.cli.record_access import master_option, open_client, uuid_shortener
from detcore.cli.shell_completion import EXPERIMENT_ID
from detcore.client.recorded_checkpoints import READABLE, SHOWN
from detcore.contract.errors import RunError
from detcore.record_descriptions import format_bytes, format_time

if TYPE_CHECKING:
    from detcore.checkpoint import Manifest
    from detcore.cli.cli_context import CliContext
    from detcore.records import CheckpointRecord


_FIELDS = (
    "uuid", "experiment_id", "trial_id", "steps_completed", "state", "size_bytes", "storage_url",
    "metadata", "resources", "started_at", "committed_at", "deleted_at",
)  # fmt: skip
_EXIT_FAULTY = 1
_TENSORS_SHOWN = 40

_EXAMPLES = """
\b
Examples:
  detcore checkpoint list --experiment 3
  detcore checkpoint download 6d1c -o model/      a prefix of the UUID is enough
  detcore checkpoint verify --all
  detcore checkpoint repair --all                 update records from the stored files
  detcore checkpoint delete 6d1c --dry-run

\b
Exit codes:
  0    success; verify, repair: all files are as they were saved
  1    error; verify, repair: files are missing or have changed
"""


@click.group("checkpoint", cls=CommandGroup, epilog=_EXAMPLES)
def checkpoint_group() -> None:
    """List, download, verify, repair and delete checkpoints.

    A checkpoint is identified by its UUID or by a unique prefix of the UUID.
    """


checkpoint_group.add_command(prune)


@checkpoint_group.command("list")
@click.option(
    "--experiment",
    type=EXPERIMENT_ID,
    metavar="ID",
    help="List only the checkpoints of this experiment.",
)
@click.option("--deleted", is_flag=True, help="Include deleted checkpoints.")
@json_option
@master_option
def list_command(obj: CliContext, experiment: int | None, deleted: bool, as_json: bool) -> None:
    """List checkpoints, oldest first."""
    with open_store(obj) as store:
        if experiment is not None:
            store.database.get_experiment(experiment)  # an unknown id is an error
        states = None if deleted else SHOWN
        records = store.database.list_checkpoints(experiment_id=experiment, states=states)
        short = uuid_shortener(store.database)
    if as_json:
        print_json([pick_fields(_FIELDS, record) for record in records])
        return
    print_checkpoints(
        ["experiment", "trial"],
        [([record.experiment_id, record.trial_id], record) for record in records],
        short,
    )


@checkpoint_group.command()
@click.argument("uuid")
@json_option
@master_option
def describe(obj: CliContext, uuid: str, as_json: bool) -> None:
    """Show the files and the metadata of a checkpoint."""
    manifest = None
    with open_store(obj) as store:
        record = store.database.get_checkpoint(uuid)
        path = None
        if record.state in READABLE:
            manifest = store.read_manifest(record)
            path = store.open_storage(record).direct_path(record.uuid)
    if as_json:
        print_json(pick_fields(_FIELDS, record) | _describe_manifest(manifest) | {"path": path})
        return
    _print_description(record, manifest, path)


@checkpoint_group.command()
@click.argument("uuid")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Target directory.  [default: a directory named after the UUID]",
)
@master_option
def download(obj: CliContext, uuid: str, output: Path | None) -> None:
    """Copy a checkpoint's files to a directory, and check each file.

    In an existing directory, files with the same names are replaced.
    """
    with open_store(obj) as store:
        record = store.get_readable(uuid)
        folder = output or Path(record.uuid)
        manifest = store.download_files(record, folder)
    click.echo(
        f"{len(manifest.files)} files, {format_bytes(manifest.size_bytes)}, verified: {folder}"
    )


@checkpoint_group.command()
@click.argument("uuid", required=False)
@click.option("--all", "verify_all", is_flag=True, help="Verify all checkpoints.")
@json_option
@master_option
def verify(obj: CliContext, uuid: str | None, verify_all: bool, as_json: bool) -> None:
    """Read the files of a checkpoint and compare them with the manifest."""
    if (uuid is None) != verify_all:
        raise click.UsageError("give either a UUID or --all")
    results = []
    with open_store(obj) as store:
        if uuid is None:
            records = store.database.list_checkpoints(states=READABLE)
        else:
            records = [store.get_readable(uuid)]
        for record in records:
            faults = store.find_faults(record)
            fault_list = [{"name": fault.name, "reason": fault.reason} for fault in faults]
            results.append({"uuid": record.uuid, "faults": fault_list})
            if not as_json:
                _print_faults(record, faults)
    if as_json:
        print_json(results)
    raise SystemExit(_EXIT_FAULTY if any(result["faults"] for result in results) else 0)


@checkpoint_group.command()
@click.argument("uuid", required=False)
@click.option("--all", "repair_all", is_flag=True, help="Repair all checkpoints.")
@click.option(
    "--remove-strays", is_flag=True, help="Remove files that do not belong to the checkpoint."
)
@master_option
def repair(obj: CliContext, uuid: str | None, repair_all: bool, remove_strays: bool) -> None:
    """Update the records of checkpoints from the stored files.

    Checkpoints that a killed process left partly saved or deleted are cleaned up. A checkpoint with
    missing or changed files is recorded as DAMAGED, and no trial resumes from it. After its files
    have been restored, it is recorded as COMPLETED again.
    """
    if (uuid is None) != repair_all:
        raise click.UsageError("give either a UUID or --all")
    if obj.master is not None:
        target = "--all" if uuid is None else uuid
        raise RunError(
            f"checkpoints of {obj.master} cannot be repaired from this machine: repair changes "
            "files and records, which are on the server's machine.\n"
            f"Run there, without --master and DETCORE_MASTER: detcore checkpoint repair {target}\n"
            f"To check the files from here: detcore checkpoint verify {target}"
        )
    is_faulty = False
    with open_store(obj) as store:
        one = [] if uuid is None else [store.database.get_checkpoint(uuid)]
        store.recover_unfinished(one or store.database.list_checkpoints())
        records = store.database.list_checkpoints()
        uuids = {record.uuid for record in one or records}
        for record in records:
            if record.uuid in uuids and record.state in ("DAMAGED", *READABLE):
                is_faulty |= _repair_checkpoint(store, record, remove_strays=remove_strays)
    raise SystemExit(_EXIT_FAULTY if is_faulty else 0)


def _repair_checkpoint(
    store: CheckpointStore, record: CheckpointRecord, *, remove_strays: bool
) -> bool:
    """Repair a checkpoint and print the result. Return whether it is damaged."""
    result = store.repair_record(record, remove_strays=remove_strays)
    new_state = f", recorded as {result.state}" if result.state != record.state else ""
    click.echo(f"{record.uuid}: {'damaged' if result.faults else 'ok'}{new_state}")
    for fault in result.faults:
        click.echo(f"  {fault}")
    for stray in result.strays:
        fate = ", removed" if stray.name in result.removed else ""
        if remove_strays and not fate:
            fate = ", not removed: not a valid name of a checkpoint file"
        click.echo(f"  {stray.shown_name}: does not belong to the checkpoint{fate}")
    return bool(result.faults)


@checkpoint_group.command()
@click.argument("uuid")
@yes_option
@dry_run_option
@click.option("--force", is_flag=True, help="Delete it even if it is in the model registry.")
@master_option
def delete(obj: CliContext, uuid: str, yes: bool, dry_run: bool, force: bool) -> None:
    """Delete the files of a checkpoint. The record stays."""
    if force and obj.master is not None:
        raise RunError(
            f"{obj.master} does not support --force, because a registered model may belong to "
            "another user.\n"
            "Delete the model version first: detcore model delete MODEL --version N"
        )
    with open_store(obj) as store:
        record = store.database.get_checkpoint(uuid)
        store.require_settled(record)
        if record.state == "DELETED" and not dry_run:
            # An interrupted deletion may have left files.
            _delete_files(obj, store, record, force=force)
            click.echo(f"checkpoint {record.uuid} is already deleted")
            return
        _print_files(record)
        if dry_run:
            click.echo("nothing was deleted (--dry-run)")
            return
        confirm(f"Delete checkpoint {record.uuid}?", yes=yes)
        _delete_files(obj, store, record, force=force)
    click.echo(f"deleted checkpoint {record.uuid}")


def _delete_files(
    obj: CliContext, store: CheckpointStore, record: CheckpointRecord, *, force: bool
) -> None:
    if obj.master is not None:
        with open_client(obj) as client:
            client.get_checkpoint(record.uuid).delete()
        return
    store.delete_files(record, force=force)


def _print_faults(record: CheckpointRecord, faults: Sequence[object]) -> None:
    if not faults:
        print_line(f"{record.uuid}: ok, {_num_files(record)} files", style="green")
    for fault in faults:
        print_line(f"{record.uuid}: {fault}", style="red")


def _print_files(record: CheckpointRecord) -> None:
    click.echo(
        f"checkpoint {record.uuid} of trial {record.trial_id}, step {record.steps_completed}: "
        f"{_num_files(record)} files, {format_bytes(record.size_bytes)} in {record.storage_url}"
    )


def _num_files(record: CheckpointRecord) -> int:
    return sum(not name.endswith("/") for name in record.resources)


def _print_description(
    record: CheckpointRecord, manifest: Manifest | None, path: Path | None
) -> None:
    """Print the record of a checkpoint, and its manifest if available."""
    fields = {
        "uuid": record.uuid,
        "state": record.state,
        "experiment": record.experiment_id,
        "trial": record.trial_id,
        "steps completed": record.steps_completed,
        "saved": format_time(record.committed_at),
        "size": format_bytes(record.size_bytes),
        "where": path or f"{record.storage_url}/{record.uuid}",
    }
    if manifest is not None:
        fields["parent"] = manifest.parent or "-"
        fields["versions"] = ", ".join(f"{k} {v}" for k, v in manifest.versions.items())
    print_fields(fields)
    print_heading("metadata")
    click.echo(json.dumps(record.metadata, indent=2))
    print_heading("files")
    print_table(
        [Column("name", wrap=True), NumberColumn("size"), "digest"],
        [
            [name, format_bytes(size), _format_digest(manifest, name)]
            for name, size in sorted(record.resources.items())
        ],
    )
    if manifest is not None and manifest.tensors:
        _print_tensors(manifest)


def _print_tensors(manifest: Manifest) -> None:
    print_heading("tensors")
    print_table(
        [Column("name", wrap=True), "shape", "dtype", Column("file", wrap=True)],
        [
            [tensor.name, tensor.shape, tensor.dtype, tensor.file]
            for tensor in manifest.tensors[:_TENSORS_SHOWN]
        ],
    )
    more = len(manifest.tensors) - _TENSORS_SHOWN
    if more > 0:
        click.echo(f"and {more} more: --json shows all")


def _format_digest(manifest: Manifest | None, name: str) -> str:
    digest = manifest.files.get(name) if manifest is not None else None
    return digest.value[:16] if digest is not None else "-"


def _describe_manifest(manifest: Manifest | None) -> dict[str, Any]:
    """Return the fields of a manifest that the record lacks, for JSON."""
    empty: dict[str, Any] = {"files": {}, "parent": None, "versions": {}, "tensors": []}
    return {name: getattr(manifest, name, value) for name, value in empty.items()}
