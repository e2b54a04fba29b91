"""Records of checkpoints: started, committed, deleted. The storage manages their files."""

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
    refuse_registered,
    registrations,
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

        - `CheckpointStarted`: ACTIVE, it is being written.
        - `CheckpointCommitted`: COMPLETED, from DAMAGED too. Recording it again has no effect;
          metadata that users have added since stays.
        - `CheckpointDeleting`: DELETING. It is not used from now on; the next start of its trial
          deletes the remaining files.
        - `CheckpointDeleted`: PARTIALLY_DELETED if `resources` are left, else DELETED.
        - `CheckpointDamaged`: DAMAGED, files are missing or have changed. No trial resumes from it.

        Args:
            change: The change.
            trial_id: The trial of a checkpoint that is started.
            force: Whether files of one in the model registry may be deleted.

        Raises:
            DatabaseError: If one that is started is recorded already, or there is no such trial.
            NotFoundError: If there is no such checkpoint.
            CheckpointStateError: If it is in the model registry, and is about to lose files.
        """
        with self._write() as connection:
            if isinstance(change, events.CheckpointStarted):
                try:
                    insert_checkpoint(connection, change, now(), trial_id=trial_id)
                except IntegrityError as error:
                    raise DatabaseError(
                        f"cannot record checkpoint {change.uuid} of trial {trial_id}: "
                        f"{error.orig}.\nIt is recorded already, or there is no such trial."
                    ) from error
                return
            loses_files = isinstance(change, events.CheckpointDeleting) or (
                isinstance(change, events.CheckpointDeleted) and change.resources
            )
            which = checkpoints.c.uuid == change.uuid
            # Locked, so that it cannot be registered until the transaction ends.
            query = select(checkpoints).where(which).with_for_update()
            found = connection.execute(query).fetchone()
            if loses_files and not force:
                refuse_registered(
                    connection, f"checkpoint {change.uuid} is", which,
                    remedy="Delete the version of the model first, or force it.",
                )  # fmt: skip
            if found is None:
                raise _not_found(change.uuid)
            change_checkpoint(connection, found, change, now(), is_late=False)

    def get_checkpoint(self, uuid: str) -> CheckpointRecord:
        """Return a checkpoint, whatever its state.

        Args:
            uuid: Its UUID, or a beginning of it that no other checkpoint has.

        Raises:
            NotFoundError: If none or several match.
        """
        column = checkpoints.c.uuid
        # By the index; a beginning needs to look at all of them.
        found = self._read_all(CheckpointRecord, select(checkpoints).where(column == uuid))
        if not found:
            beginning = select(checkpoints).where(column.startswith(uuid, autoescape=True))
            some = beginning.order_by(column).limit(_LISTED + 1)
            found = self._read_all(CheckpointRecord, some)
        if len(found) == 1:
            return found[0]
        newest = select(column).order_by(checkpoints.c.started_at.desc()).limit(_LISTED)
        with self._read() as connection:
            others = connection.execute(newest).scalars().all()
        raise _not_found(uuid, matched=[each.uuid for each in found], others=others)

    def list_shared_prefixes(self, length: int) -> list[str]:
        """Return the beginnings of UUIDs, `length` characters each, that several checkpoints have.

        `get_checkpoint` takes any other beginning of that length.
        """
        beginning = func.substr(checkpoints.c.uuid, 1, length)
        query = select(beginning).group_by(beginning).having(func.count() > 1)
        with self._read() as connection:
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
            experiment_id: Only those of this experiment.
            trial_id: Only those of this trial.
            states: Only those in one of these states.
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
        """Return how many COMPLETED checkpoints an experiment has."""
        query = select(func.count()).where(
            checkpoints.c.experiment_id == experiment_id, checkpoints.c.state == COMPLETED
        )
        return int(self._read_value(query))

    def list_registered_checkpoints(self) -> dict[str, list[str]]:
        """Return the checkpoints in the registry by UUID, with ``"model version N"`` of each."""
        with self._read() as connection:
            return registrations(connection)

    def latest_checkpoint(self, trial_id: int) -> CheckpointRecord | None:
        """Return the COMPLETED checkpoint of a trial with the most steps, the newest of equals."""
        query = select_latest(select(checkpoints), checkpoints.c.trial_id == trial_id)
        return self._read_first(CheckpointRecord, query)

    def list_resume_checkpoints(self, trial_id: int) -> list[CheckpointRecord]:
        """Return the COMPLETED checkpoints of a trial, that of `latest_checkpoint` first."""
        query = select_latest(select(checkpoints), checkpoints.c.trial_id == trial_id)
        return self._read_all(CheckpointRecord, query.limit(None))

    def checkpoint_metrics(self, experiment_id: int, metric: str) -> dict[str, float]:
        """Return a validation metric of each checkpoint that was validated at its step, by UUID.

        Those without that metric, or with NaN, are left out. Where several runs of a trial
        validated at a step, the last one counts.
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
        with self._read() as connection:
            return {row.uuid: row.value for row in connection.execute(query)}

    def add_checkpoint_metadata(
        self, uuid: str, metadata: Mapping[str, object]
    ) -> CheckpointRecord:
        """Add to a checkpoint's metadata; of top-level keys that are there the values are replaced.

        Args:
            uuid: The whole UUID.
            metadata: JSON values.

        Raises:
            NotFoundError: If there is no such checkpoint.
            ConfigError: If `metadata` is no dictionary of JSON values.
        """
        added = check_json_metadata(metadata)
        return self._change_metadata(uuid, lambda before: {**before, **added})

    def remove_checkpoint_metadata(self, uuid: str, keys: Iterable[str]) -> CheckpointRecord:
        """Remove top-level keys of a checkpoint's metadata; those that are not there are skipped.

        Raises:
            NotFoundError: If there is no such checkpoint.
            ConfigError: If `keys` is not a list of texts.
        """
        gone = set(check_strings("keys", keys))
        return self._change_metadata(
            uuid, lambda before: {key: before[key] for key in before if key not in gone}
        )

    def _change_metadata(
        self, uuid: str, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> CheckpointRecord:
        here = checkpoints.c.uuid == uuid
        with self._write() as connection:
            row = connection.execute(select(checkpoints.c.metadata).where(here)).fetchone()
            if row is None:
                raise _not_found(uuid)
            changed = change(row.metadata)
            connection.execute(update(checkpoints).where(here).values(metadata=changed))
            rows = connection.execute(select(checkpoints).where(here))
            return read_rows(CheckpointRecord, rows)[0]


def _not_found(
    uuid: str, *, matched: Sequence[str] = (), others: Sequence[str] = ()
) -> NotFoundError:
    if matched:
        several = f"{_LISTED} or more" if len(matched) > _LISTED else str(len(matched))
        return NotFoundError(
            f"{uuid!r} is the beginning of {several} checkpoints: "
            f"{', '.join(matched[:_LISTED])}.\nGive more of the UUID."
        )
    listed = f"\nThe newest are: {', '.join(others)}." if others else ""
    return NotFoundError(
        f"no checkpoint {uuid!r} is recorded.{listed}\nList them: detcore checkpoint list"
    )


def select_latest(what: Select[Any], owner: ColumnElement[bool]) -> Select[Any]:
    """Return the query of the COMPLETED checkpoint with the most steps, the newest of equals.

    Args:
        what: A selection from `checkpoints`.
        owner: A condition on it.
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
