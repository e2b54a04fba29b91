"""Recorded checkpoints and their storages, and ``detcore checkpoint prune``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from detcore.cli.output import (
    Column,
    NumberColumn,
    confirm,
    count_of,
    dry_run_option,
    json_option,
    print_json,
    print_line,
    print_table,
    yes_option,
)
from detcore.cli.record_access import master_option, open_client, open_records, uuid_shortener
from detcore.cli.shell_completion import experiment_argument
from detcore.client.recorded_checkpoints import READABLE, SHOWN, CheckpointFiles
from detcore.contract.errors import CheckpointStateError
from detcore.record_descriptions import format_bytes

if TYPE_CHECKING:
    from detcore.cli.cli_context import CliContext
    from detcore.records import CheckpointRecord, Database
    from detcore.storage import StorageBackend


class CheckpointStore(CheckpointFiles):
    """The files of the checkpoints in `open_records`. Files of a server are read-only."""

    def __init__(self, obj: CliContext, database: Database) -> None:
        super().__init__(
            database, obj.environment, make_plugins=obj.plugin_manager, progress_to=sys.stderr
        )

    def open_storage(self, record: CheckpointRecord) -> StorageBackend:
        """Return the storage that a checkpoint is in."""
        from detcore.client.http import ServerRecords

        if isinstance(self.database, ServerRecords):
            return self.database.open_checkpoint(record.uuid)
        return super().open_storage(record)


def survey_checkpoints(
    obj: CliContext, database: Database, experiment_id: int, *, verify: bool
) -> list[tuple[CheckpointRecord, list[str] | None]]:
    """Return the checkpoints of an experiment, each with the faults of its files.

    Args:
        obj: Selects the records.
        database: The records, open.
        experiment_id: The experiment.
        verify: Whether to read the files. The faults of unread checkpoints are None.
    """
    survey: list[tuple[CheckpointRecord, list[str] | None]] = []
    with CheckpointStore(obj, database) as store:
        for record in database.list_checkpoints(experiment_id=experiment_id, states=SHOWN):
            faults = None
            if verify and record.state in READABLE:
                faults = [str(fault) for fault in store.find_faults(record)]
            survey.append((record, faults))
    return survey


@contextlib.contextmanager
def open_store(obj: CliContext) -> Iterator[CheckpointStore]:
    """Open the records, including all reports of workers so far."""
    with open_records(obj) as database, CheckpointStore(obj, database) as store:
        yield store


@click.command()
@experiment_argument
@click.option(
    "--save-experiment-best",
    type=click.IntRange(min=0),
    metavar="N",
    help="Keep the N best checkpoints of the experiment.",
)
@click.option(
    "--save-trial-best",
    type=click.IntRange(min=0),
    metavar="N",
    help="Keep the N best checkpoints of each trial.",
)
@click.option(
    "--save-trial-latest",
    type=click.IntRange(min=0),
    metavar="N",
    help="Keep the N latest checkpoints of each trial.",
)
@yes_option
@dry_run_option
@json_option
@master_option
def prune(
    obj: CliContext,
    /,
    experiment_id: int,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **rules: int | None,
) -> None:
    """Delete checkpoints of an experiment according to its retention policy.

    The policy is checkpoint_storage in the configuration; options override it. Registered
    checkpoints, checkpoints that other experiments start from, and the latest checkpoints of trials
    that may continue are always kept.
    """
    with open_store(obj) as store:
        limits = {name: value for name, value in rules.items() if value is not None}
        plan, policy = store.plan_pruning(experiment_id, limits)
        reasons, deleted = dict(plan.kept), list(plan.deleted)
        if not as_json:
            records = store.database.list_checkpoints(experiment_id=experiment_id)
            fates = {**dict.fromkeys(deleted, ("no",)), **reasons}
            print_checkpoints(
                ["trial", Column("kept", wrap=True)],
                [
                    ([record.trial_id, "; ".join(fates[record.uuid])], record)
                    for record in records
                    if record.uuid in fates
                ],
                uuid_shortener(store.database),
            )
        if deleted and not dry_run:
            confirm(f"Delete {count_of(len(deleted), 'checkpoint')}?", yes=yes)
            if obj.master is None:
                result = store.prune_checkpoints(experiment_id, plan, policy)
                reasons, deleted = dict(result.kept), list(result.deleted)
            else:
                deleted = _prune_remotely(obj, deleted, reasons)
    if as_json:
        print_json({"dry_run": dry_run, "kept": reasons, "deleted": deleted})
    elif dry_run:
        print_line("nothing was deleted (--dry-run)")
    else:
        print_line(f"{len(deleted)} deleted, {len(reasons)} kept")


def _prune_remotely(
    obj: CliContext, uuids: list[str], reasons: dict[str, tuple[str, ...]]
) -> list[str]:
    """Delete checkpoints through the server. Return the deleted ones, and add other reasons."""
    deleted = []
    with open_client(obj) as client:
        for uuid in uuids:
            try:
                client.get_checkpoint(uuid).delete()
            except CheckpointStateError as error:  # it was registered in the meantime
                reasons[uuid] = (str(error).partition("\n")[0],)
            else:
                deleted.append(uuid)
    return deleted


def print_checkpoints(
    titles: Sequence[Column | str],
    rows: Sequence[tuple[list[object], CheckpointRecord]],
    short: Callable[[str], str],
) -> None:
    """Print a table of checkpoints.

    Args:
        titles: Additional columns.
        rows: Values of the additional columns, and the checkpoint.
        short: Shortens a UUID.
    """
    print_table(
        ["uuid", "steps", "state", NumberColumn("size"), "saved", *titles],
        [
            [
                short(record.uuid),
                record.steps_completed,
                record.state,
                format_bytes(record.size_bytes) if record.resources else "-",
                record.committed_at,
                *values,
            ]
            for values, record in rows
        ],
    )
