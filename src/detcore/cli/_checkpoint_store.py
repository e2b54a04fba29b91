"""Recorded checkpoints, and the storages that they are in."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from detcore.cli._completion import EXPERIMENT_ID
from detcore.cli._output import (
    Column,
    confirm,
    count_of,
    format_bytes,
    print_json,
    print_line,
    print_table,
)
from detcore.cli._records import (
    ServerRecords,
    master_option,
    open_client,
    open_records,
    uuid_shortener,
)
from detcore.contract.errors import CheckpointError, CheckpointStateError, DetcoreError

if TYPE_CHECKING:
    from detcore.checkpoint import Fault, RecordedPlace, RetentionPlan, RetentionPolicy
    from detcore.cli._context import CliContext
    from detcore.database import CheckpointRecord, Database, ExperimentRecord
    from detcore.hooks import PluginManager
    from detcore.storage import StorageBackend

__all__ = ["READABLE", "SHOWN", "CheckpointStore", "open_store", "prune", "survey_checkpoints"]

READABLE = ("COMPLETED", "PARTIALLY_DELETED")
SHOWN = ("ACTIVE", "DAMAGED", *READABLE)


class CheckpointStore(contextlib.ExitStack):
    """The records, and the storages that they name, each opened once."""

    def __init__(self, obj: CliContext, database: Database) -> None:
        from detcore.checkpoint import watch_transfers

        super().__init__()
        self._home = obj.environment.home
        self._obj = obj
        self._plugins: PluginManager | None = None
        self._places: dict[tuple[int, str], RecordedPlace] = {}
        self._opened: dict[str, StorageBackend] = {}
        self.database = database
        self.observer = watch_transfers(sys.stderr, lines=True)

    def storage(self, record: CheckpointRecord) -> StorageBackend:
        """Open the storage that a checkpoint is in; one behind a server can be read only."""
        from detcore.checkpoint import find_place

        if isinstance(self.database, ServerRecords):
            return self.database.open_checkpoint(record.uuid)
        if self._plugins is None:
            self._plugins = self._obj.plugin_manager()
        home, plugins = self._home, self._plugins
        key = (record.experiment_id, record.storage_url)
        if key not in self._places:
            self._places[key] = find_place(
                record, database=self.database, home=home, plugins=plugins
            )
        place = self._places[key]
        spec = repr(place.spec)  # two experiments may mean different servers by one URL
        if spec not in self._opened:
            self._opened[spec] = place.open()
            self.callback(self._opened[spec].close)
        return self._opened[spec]

    def faults(self, record: CheckpointRecord) -> list[Fault]:
        """Read a checkpoint and return its faults, or the reason why it cannot be read."""
        from detcore.checkpoint import Fault, verify_checkpoint

        try:
            return verify_checkpoint(self.storage(record), record.uuid, observer=self.observer)
        except DetcoreError as error:  # a storage that is away must not hide what others hold
            return [Fault(record.storage_url, str(error).partition("\n")[0])]


def survey_checkpoints(
    obj: CliContext, database: Database, experiment_id: int, *, verify: bool
) -> list[tuple[CheckpointRecord, list[str] | None]]:
    """Return the checkpoints of an experiment, each with the faults of its files.

    Args:
        obj: Selects the records.
        database: The records, open.
        experiment_id: The experiment.
        verify: Whether to read the files; the faults of those that were not read are None.
    """
    found: list[tuple[CheckpointRecord, list[str] | None]] = []
    with CheckpointStore(obj, database) as store:
        for record in database.list_checkpoints(experiment_id=experiment_id, states=SHOWN):
            faults = None
            if verify and record.state in READABLE:
                faults = [str(fault) for fault in store.faults(record)]
            found.append((record, faults))
    return found


@contextlib.contextmanager
def open_store(obj: CliContext) -> Iterator[CheckpointStore]:
    """Open the records, with everything that workers have reported so far."""
    with open_records(obj) as database, CheckpointStore(obj, database) as store:
        yield store


@click.command()
@click.argument("experiment_id", type=EXPERIMENT_ID, metavar="EXPERIMENT_ID")
@click.option("--save-experiment-best", type=click.IntRange(min=0), metavar="N")
@click.option("--save-trial-best", type=click.IntRange(min=0), metavar="N")
@click.option("--save-trial-latest", type=click.IntRange(min=0), metavar="N")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object on stdout.")
@master_option
@click.pass_obj
def prune(
    obj: CliContext,
    /,
    experiment_id: int,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **rules: int | None,
) -> None:
    """Delete the checkpoints of an experiment that its configuration does not keep.

    Those in the model registry, those that other experiments start from, and the latest one of a
    trial that may continue are kept in any case.
    """
    from detcore.checkpoint import RetentionPolicy, plan_retention

    with open_records(obj) as database:
        experiment = database.get_experiment(experiment_id)
        given = {name: value for name, value in rules.items() if value is not None}
        policy = dataclasses.replace(RetentionPolicy.from_config(experiment.config), **given)
        plan = plan_retention(database, experiment_id, policy=policy)
        records = database.list_checkpoints(experiment_id=experiment_id)
        if not as_json:
            _print_plan(plan, records, uuid_shortener(database))
        if plan.deleted and not dry_run:
            confirm(f"Delete {count_of(len(plan.deleted), 'checkpoint')}?", yes=yes)
            if obj.master is None:
                plan = _prune(obj, database, experiment, policy, records, plan)
            else:
                plan = _prune_remotely(obj, plan)
    if as_json:
        print_json({"dry_run": dry_run, "kept": plan.kept, "deleted": plan.deleted})
    elif dry_run:
        print_line("nothing was deleted (--dry-run)")
    else:
        print_line(f"{len(plan.deleted)} deleted, {len(plan.kept)} kept")


def _prune(
    obj: CliContext,
    database: Database,
    experiment: ExperimentRecord,
    policy: RetentionPolicy,
    records: list[CheckpointRecord],
    plan: RetentionPlan,
) -> RetentionPlan:
    """Make a pass over each storage that the experiment has used."""
    from detcore.checkpoint import RetentionPlan, apply_retention

    by_url = {record.storage_url: record for record in records if record.uuid in plan.deleted}
    kept = dict(plan.kept)
    deleted: list[str] = []
    with CheckpointStore(obj, database) as store:
        for record in by_url.values():
            storage = store.storage(record)
            if storage.url != record.storage_url:
                raise CheckpointError(
                    f"checkpoint {record.uuid} is in {record.storage_url}, but the experiment's "
                    f"settings lead to {storage.url}.\nNothing was deleted there."
                )
            done = apply_retention(database, storage, experiment.id, policy=policy)
            kept.update(done.kept)
            deleted.extend(done.deleted)
    return RetentionPlan(kept, tuple(deleted))


def _prune_remotely(obj: CliContext, plan: RetentionPlan) -> RetentionPlan:
    """Have the server delete each checkpoint; keep those that it refuses."""
    from detcore.checkpoint import RetentionPlan

    kept, deleted = dict(plan.kept), []
    with open_client(obj) as client:
        for uuid in plan.deleted:
            try:
                client.get_checkpoint(uuid).delete()
            except CheckpointStateError as error:  # it was registered since the plan was made
                kept[uuid] = (str(error).partition("\n")[0],)
            else:
                deleted.append(uuid)
    return RetentionPlan(kept, tuple(deleted))


def _print_plan(
    plan: RetentionPlan, records: list[CheckpointRecord], short: Callable[[str], str]
) -> None:
    print_table(
        [Column("uuid"), Column("trial", align="right"), Column("steps", align="right"),
         Column("size", align="right"), Column("kept", wrap=True)],
        [
            [short(record.uuid), str(record.trial_id), str(record.steps_completed),
             format_bytes(record.size_bytes) if record.resources else "-",
             "; ".join(plan.kept.get(record.uuid, ("no",)))]
            for record in records
            if record.uuid in plan.kept or record.uuid in plan.deleted
        ],
    )  # fmt: skip
