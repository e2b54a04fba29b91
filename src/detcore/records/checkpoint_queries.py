"""Queries on the records of checkpoints. The storage manages the files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement

from detcore.contract.errors import DatabaseError, NotFoundError
from detcore.log import events
from detcore.records.event_application import (
    COMPLETED,
    change_checkpoint,
    insert_checkpoint,
    list_registrations,
    refuse_registered,
)
from detcore.records.metric_queries import AT_ITS_STEP, is_current
from detcore.records.queries import Queries, check_json_metadata, check_strings, now
from detcore.records.record_classes import CheckpointRecord, read_rows
from detcore.records.schema import checkpoints, metrics, validation_values

_LISTED = 10


class CheckpointQueries(Queries):
    """Record checkpoints, find them, and change their metadata."""

    def record_checkpoint(
        self, change: events.CheckpointEvent, *, trial_id: int | None = None, force: bool = False
    ) -> None:
        """Record a change of a checkpoint that this process has made or is about to make.

        - `CheckpointStarted`: ACTIVE. The checkpoint is being written.
        - `CheckpointCommitted`: COMPLETED, also from DAMAGED. Recording it again has no effect, and
          metadata that users have added is preserved.
        - `CheckpointDeleting`: DELETING. The checkpoint is not used any more. The next start of its
          trial deletes the remaining files.
        - `CheckpointDeleted`: PARTIALLY_DELETED if `resources` remain. Otherwise DELETED.
        - `CheckpointDamaged`: DAMAGED. Files are missing or have changed. No trial resumes from it.

        Args:
            change: The change.
            trial_id: The trial of a started checkpoint.
            force: Whether files of a registered checkpoint may be deleted.

        Raises:
            DatabaseError: If a started checkpoint is already recorded, or the trial does not exist.
            NotFoundError: If no checkpoint has this UUID.
            CheckpointStateError: If the change deletes files of a registered checkpoint.
        """
        with self._begin_write() as connection:
            if isinstance(change, events.CheckpointStarted):
                try:
                    insert_checkpoint(connection, change, now(), trial_id=trial_id)
                except IntegrityError as error:
                    raise DatabaseError(
                        f"cannot record checkpoint {change.uuid} of trial {trial_id}: "
                        f"{error.orig}.\nIt is already recorded, or the trial does not exist."
                    ) from error
                return
            loses_files = isinstance(change, events.CheckpointDeleting) or (
                isinstance(change, events.CheckpointDeleted) and change.resources
            )
            which = checkpoints.c.uuid == change.uuid
            # The row is locked, so that it cannot be registered until the transaction ends.
            query = select(checkpoints).where(which).with_for_update()
            row = connection.execute(query).fetchone()
            if loses_files and not force:
                refuse_registered(
                    connection, f"checkpoint {change.uuid} is", which,
                    remedy="Delete the version of the model first, or use --force.",
                )  # fmt: skip
            if row is None:
                raise _not_found(change.uuid)
            change_checkpoint(connection, row, change, now(), is_late=False)

    def get_checkpoint(self, uuid: str) -> CheckpointRecord:
        """Return a checkpoint in any state.

        Args:
            uuid: UUID, or a prefix that no other checkpoint has.

        Raises:
            NotFoundError: If no checkpoint matches, or several do.
        """
        column = checkpoints.c.uuid
        # A complete UUID is an index look-up. A prefix needs a scan.
        records = self._read_all(CheckpointRecord, select(checkpoints).where(column == uuid))
        if not records:
            query = select(checkpoints).where(column.startswith(uuid, autoescape=True))
            query = query.order_by(column).limit(_LISTED + 1)
            records = self._read_all(CheckpointRecord, query)
        if len(records) == 1:
            return records[0]
        newest = select(column).order_by(checkpoints.c.started_at.desc()).limit(_LISTED)
        with self._begin_read() as connection:
            newest_uuids = connection.execute(newest).scalars().all()
        raise _not_found(uuid, matches=[record.uuid for record in records], newest=newest_uuids)

    def list_shared_prefixes(self, length: int) -> list[str]:
        """Return the UUID prefixes of `length` characters that several checkpoints share.

        `get_checkpoint` accepts all other prefixes of this length.
        """
        prefix = func.substr(checkpoints.c.uuid, 1, length)
        query = select(prefix).group_by(prefix).having(func.count() > 1)
        with self._begin_read() as connection:
            return list(connection.execute(query).scalars())

    def list_checkpoints(
        self,
        *,
        experiment_id: int | None = None,
        trial_id: int | None = None,
        states: Iterable[str] | None = None,
    ) -> list[CheckpointRecord]:
        """Return checkpoints, oldest first.

        Args:
            experiment_id: Return only checkpoints of this experiment.
            trial_id: Return only checkpoints of this trial.
            states: Return only checkpoints in one of these states.
        """
        query = select(checkpoints)
        if experiment_id is not None:
            query = query.where(checkpoints.c.experiment_id == experiment_id)
        if trial_id is not None:
            query = query.where(checkpoints.c.trial_id == trial_id)
        if states is not None:
            query = query.where(checkpoints.c.state.in_(list(states)))
        order = (checkpoints.c.started_at, checkpoints.c.uuid)
        return self._read_all(CheckpointRecord, query.order_by(*order))

    def count_checkpoints(self, experiment_id: int) -> int:
        """Return the number of COMPLETED checkpoints of an experiment."""
        query = select(func.count()).where(
            checkpoints.c.experiment_id == experiment_id, checkpoints.c.state == COMPLETED
        )
        return int(self._read_value(query))

    def list_registered_checkpoints(self) -> dict[str, list[str]]:
        """Return the registrations such as ``"model version N"`` by checkpoint UUID."""
        with self._begin_read() as connection:
            return list_registrations(connection)

    def latest_checkpoint(self, trial_id: int) -> CheckpointRecord | None:
        """Return the COMPLETED checkpoint of a trial with the most steps, or None.

        Among checkpoints with equal steps, the newest is returned.
        """
        query = select_latest(select(checkpoints), checkpoints.c.trial_id == trial_id)
        return self._read_first(CheckpointRecord, query)

    def list_resume_checkpoints(self, trial_id: int) -> list[CheckpointRecord]:
        """Return the COMPLETED checkpoints of a trial, starting with `latest_checkpoint`."""
        query = select_latest(select(checkpoints), checkpoints.c.trial_id == trial_id)
        return self._read_all(CheckpointRecord, query.limit(None))

    def checkpoint_metrics(self, experiment_id: int, metric: str) -> dict[str, float]:
        """Return a validation metric of each checkpoint that was validated at its step, by UUID.

        Checkpoints without the metric, or with NaN, are left out. If several runs of a trial
        validated at a step, the last run counts.
        """
        query = (
            select(checkpoints.c.uuid, validation_values.c.value)
            .join(metrics, AT_ITS_STEP)
            .join(validation_values, validation_values.c.metric_id == metrics.c.id)
            .where(
                checkpoints.c.experiment_id == experiment_id,
                validation_values.c.name == metric,
                is_current(is_last=True),
            )
            .order_by(metrics.c.id)
        )
        with self._begin_read() as connection:
            return {row.uuid: row.value for row in connection.execute(query)}

    def add_checkpoint_metadata(
        self, uuid: str, metadata: Mapping[str, object]
    ) -> CheckpointRecord:
        """Add to a checkpoint's metadata. Values of existing top-level keys are replaced.

        Args:
            uuid: The complete UUID.
            metadata: JSON values.

        Raises:
            NotFoundError: If no checkpoint has this UUID.
            ConfigError: If `metadata` is not a dictionary of JSON values.
        """
        added = check_json_metadata(metadata)
        return self._change_metadata(uuid, lambda before: {**before, **added})

    def remove_checkpoint_metadata(self, uuid: str, keys: Iterable[str]) -> CheckpointRecord:
        """Remove top-level keys from a checkpoint's metadata. Missing keys are ignored.

        Raises:
            NotFoundError: If no checkpoint has this UUID.
            ConfigError: If `keys` is not a list of strings.
        """
        removed = set(check_strings("keys", keys))
        return self._change_metadata(
            uuid, lambda before: {key: before[key] for key in before if key not in removed}
        )

    def _change_metadata(
        self, uuid: str, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> CheckpointRecord:
        here = checkpoints.c.uuid == uuid
        with self._begin_write() as connection:
            row = connection.execute(select(checkpoints.c.metadata).where(here)).fetchone()
            if row is None:
                raise _not_found(uuid)
            metadata = change(row.metadata)
            connection.execute(update(checkpoints).where(here).values(metadata=metadata))
            rows = connection.execute(select(checkpoints).where(here))
            return read_rows(CheckpointRecord, rows)[0]


def _not_found(
    uuid: str, *, matches: Sequence[str] = (), newest: Sequence[str] = ()
) -> NotFoundError:
    if matches:
        several = f"{_LISTED} or more" if len(matches) > _LISTED else str(len(matches))
        return NotFoundError(
            f"{uuid!r} is a prefix of {several} checkpoints: "
            f"{', '.join(matches[:_LISTED])}.\nUse a longer prefix."
        )
    listed = f"\nNewest checkpoints: {', '.join(newest)}." if newest else ""
    return NotFoundError(
        f"no checkpoint {uuid!r} is recorded.{listed}\nList them: detcore checkpoint list"
    )


def select_latest(what: Select[Any], owner: ColumnElement[bool]) -> Select[Any]:
    """Return the query of the COMPLETED checkpoint with the most steps.

    Among checkpoints with equal steps, it selects the newest.

    Args:
        what: A selection from `checkpoints`.
        owner: A condition on `checkpoints`.
    """
    return (
        what.where(owner, checkpoints.c.state == COMPLETED)
        .order_by(
            checkpoints.c.steps_completed.desc(),
            checkpoints.c.committed_at.desc(),
            checkpoints.c.uuid,
        )
        .limit(1)
    )
