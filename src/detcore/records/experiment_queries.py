"""Experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from sqlalchemy import Connection, delete, func, literal, select
from sqlalchemy.sql.elements import ColumnElement

from detcore.contract.values import ExperimentState
from detcore.records.column_types import MAX_INDEXED
from detcore.records.event_application import refuse_registered
from detcore.records.kept_secrets import hide_secrets
from detcore.records.queries import (
    Queries,
    change,
    change_where,
    find,
    now,
    require,
)
from detcore.records.record_classes import ExperimentRecord, read_rows
from detcore.records.runner_lock import Runner, RunnerLock, find_runner
from detcore.records.schema import (
    checkpoints,
    cursors,
    event_logs,
    events,
    experiment_labels,
    experiments,
    metrics,
    runs,
    search_events,
    submissions,
    trials,
    validation_values,
)

SERVER_QUEUE = 0
"""The number of the lock of a server's queue, which starts the runners of its experiments."""
_CLAIMED = (ExperimentState.PAUSED, ExperimentState.ERROR)


class ExperimentQueries(Queries):
    """Create, read, move on and delete experiments."""

    def create_experiment(
        self,
        *,
        config: Mapping[str, object],
        config_text: str | None,
        model_dir: str = "",
        name: str,
        place: Callable[[Connection, int], str] | None = None,
        script_start: str | None = None,
    ) -> int:
        """Record a new experiment, in state RUNNING.

        Secrets in the configuration and in the file are starred out; see `save_secrets`.

        Args:
            config: The configuration, defaults applied; JSON values.
            config_text: The experiment file as it was written, or None.
            model_dir: Folder of the user's code.
            name: Its name in lists.
            place: Called in the transaction with the new id, before other processes see the record:
                returns `model_dir`. If it raises, nothing is recorded.
            script_start: Identifies the process of a script by itself.

        Returns:
            Its id, from 1.
        """
        hidden, text = hide_secrets(config, config_text)
        with self._write() as connection:
            created = connection.execute(
                experiments.insert().values(
                    name=name,
                    state=ExperimentState.RUNNING,
                    config=hidden,
                    config_text=text,
                    model_dir=model_dir,
                    script_start=script_start,
                    archived=False,
                    notes="",
                    created_at=now(),
                )
            )
            number = int(created.inserted_primary_key[0])  # type: ignore[index]  # one row
            labels = hidden.get("labels")
            if isinstance(labels, list | tuple):
                texts = [label for label in labels if isinstance(label, str)]
                replace_labels(connection, number, texts)
            if place is not None:
                folder = place(connection, number)
                change(connection, experiments, number, model_dir=folder)
            return number

    def change_config(
        self,
        experiment_id: int,
        *,
        config: Mapping[str, object],
        changes: Mapping[str, Sequence[object]],
    ) -> None:
        """Replace the configuration of an experiment; each of its trials gets an event of it.

        Secrets in the configuration are starred out; see `save_secrets`.

        Args:
            experiment_id: Which one.
            config: The whole new configuration; JSON values.
            changes: Old and new values by dotted names, without secrets: the payload of the
                events, whose kind is "config".

        Raises:
            NotFoundError: If no experiment has that id.
        """
        hidden, _ = hide_secrets(config, None)
        with self._write() as connection:
            change(connection, experiments, experiment_id, config=hidden)
            last = select(func.max(runs.c.run_id)).where(runs.c.trial_id == trials.c.id)
            row = {
                "trial_id": trials.c.id,
                "run_id": func.coalesce(last.scalar_subquery(), 0),
                "kind": literal("config"),
                "payload": literal(changes, events.c.payload.type),
                "reported_at": literal(now(), events.c.reported_at.type),
            }
            rows = select(*row.values()).where(trials.c.experiment_id == experiment_id)
            connection.execute(events.insert().from_select(list(row), rows))

    def get_experiment(self, experiment_id: int) -> ExperimentRecord:
        """Return an experiment.

        Raises:
            NotFoundError: If no experiment has that id; the message lists the known ones.
        """
        with self._read() as connection:
            return read_rows(ExperimentRecord, [find(connection, experiments, experiment_id)])[0]

    def list_experiments(
        self,
        *,
        states: Iterable[ExperimentState] | None = None,
        archived: bool | None = None,
        labels: Iterable[str] = (),
        name: str = "",
        where: ColumnElement[bool] | None = None,
        newest_first: bool = False,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[ExperimentRecord]:
        """Return experiments.

        Args:
            states: Only those in one of these states; None = all.
            archived: Only those that are archived, or that are not; None = all.
            labels: Only those that have all of these in their configuration.
            name: Only those with this in their name, in capitals or not.
            where: Only those of which this is true: a condition on the table of experiments.
            newest_first: Whether the newest is the first one, instead of the oldest.
            limit: Maximum number of results; None = all.
            offset: How many are left out at the beginning.
        """
        which = _filters(states, archived, labels, where)
        order = experiments.c.id.desc() if newest_first else experiments.c.id
        query = select(experiments).where(*which).order_by(order)
        with self._read() as connection:
            if name:
                ids = _named(connection, which, name)[:: -1 if newest_first else 1]
                page = ids[offset:] if limit is None else ids[offset : offset + limit]
                query = select(experiments).where(experiments.c.id.in_(page)).order_by(order)
            else:
                query = query.limit(limit).offset(offset or None)
            return read_rows(ExperimentRecord, connection.execute(query))

    def count_experiments(
        self,
        *,
        states: Iterable[ExperimentState] | None = None,
        archived: bool | None = None,
        labels: Iterable[str] = (),
        name: str = "",
        where: ColumnElement[bool] | None = None,
    ) -> int:
        """Return how many experiments `list_experiments` has, all pages together."""
        which = _filters(states, archived, labels, where)
        with self._read() as connection:
            if name:
                return len(_named(connection, which, name))
            query = select(func.count()).select_from(experiments).where(*which)
            return int(connection.execute(query).scalar() or 0)

    def set_experiment_state(
        self, experiment_id: int, state: ExperimentState, *, error: str | None = None
    ) -> None:
        """Record where an experiment stands.

        Args:
            experiment_id: Which.
            state: The new state.
            error: The reason for a failure, in one line; None removes an earlier one.

        Raises:
            NotFoundError: If no experiment has that id.
        """
        ended_at = None if state == ExperimentState.RUNNING else now()
        self._change(experiments, experiment_id, state=state, error=error, ended_at=ended_at)

    def open_lock(self, experiment_id: int, home: Path) -> RunnerLock:
        """Return the lock of an experiment, which is not acquired yet; the caller closes it.

        Args:
            experiment_id: Which.
            home: Holds the file of the lock where the records are on a server.
        """
        return RunnerLock(self._engine, experiment_id, home)

    def find_runner(self, experiment_id: int) -> Runner | None:
        """Return the process that runs an experiment; None if none does."""
        return find_runner(self._engine, experiment_id)

    def is_experiment_alive(self, experiment_id: int) -> bool:
        """Return whether a process runs an experiment, or a server will."""
        if self.find_runner(experiment_id) is not None:
            return True
        here = submissions.c.experiment_id == experiment_id
        query = select(submissions.c.phase).where(here, submissions.c.phase != "ENDED")
        return self._read_value(query) is not None and self.find_runner(SERVER_QUEUE) is not None

    def observe_experiment(self, experiment_id: int) -> tuple[ExperimentRecord, bool]:
        """Return an experiment, and whether it is RUNNING and a process runs it, or a server will.

        One that ends just now is not taken for one that was killed: how it ended is recorded
        before its runner releases the lock, so that is read once more.

        Raises:
            NotFoundError: If no experiment has that id.
        """
        record = self.get_experiment(experiment_id)
        while record.state is ExperimentState.RUNNING:
            is_alive = self.is_experiment_alive(experiment_id)
            before, record = record, record if is_alive else self.get_experiment(experiment_id)
            if record.state == before.state:
                return record, is_alive
        return record, False

    def claim_experiment(
        self,
        experiment_id: int,
        *,
        states: Iterable[ExperimentState] = _CLAIMED,
        also: Callable[[Connection], object] | None = None,
        script_start: str | None = None,
    ) -> bool:
        """Take over an experiment that has ended: it is RUNNING then.

        Of several processes that try at once, on whatever machines, one does.

        Args:
            experiment_id: Which.
            states: The states in which it can be claimed.
            also: Called in the transaction if this process did; writes further records.
            script_start: As for `create_experiment`.

        Returns:
            Whether this process did. False also if no experiment has that id.
        """
        ended = experiments.c.state.in_(states)
        which = (experiments.c.id == experiment_id, ended)
        changed: dict[str, object] = {
            "state": ExperimentState.RUNNING,
            "error": None,
            "ended_at": None,
        }
        if script_start is not None:
            changed["script_start"] = script_start
        with self._write() as connection:
            claimed = change_where(connection, experiments, *which, **changed)
            if claimed and also is not None:
                also(connection)
            return claimed

    def list_script_runs(self, *, start: str) -> list[ExperimentRecord]:
        """Return the experiments that a start of a script has opened, in the order of its calls."""
        query = select(experiments).where(experiments.c.script_start == start)
        found = self._read_all(ExperimentRecord, query)
        return sorted(found, key=lambda record: record.script_call)

    def list_runs_after(self, first: ExperimentRecord) -> list[ExperimentRecord]:
        """Return an experiment and those of later calls of the script, in the order of the calls.

        Starts of the script that continued the start of the first one have added to them.
        """
        query = select(experiments).where(experiments.c.id >= first.id)
        return sorted(
            (
                record
                for record in self._read_all(ExperimentRecord, query)
                if first.id in (record.id, (record.config.get("script_start") or {}).get("first"))
            ),
            key=lambda record: record.script_call,
        )

    def finish_script(self, start: str) -> None:
        """Record that a script has ended as its author intended.

        Without effect unless all experiments that it opened are COMPLETED. They belong to no start
        afterwards, so that the next start of the script does not continue this one.
        """
        found = self.list_script_runs(start=start)
        if all(record.state is ExperimentState.COMPLETED for record in found):
            with self._write() as connection:
                mine = experiments.c.script_start == start
                change_where(connection, experiments, mine, script_start=None)

    def delete_experiment(self, experiment_id: int) -> None:
        """Remove an experiment and all records that belong to it; files are the caller's business.

        Its id, and those of its trials, are not given again.

        Raises:
            NotFoundError: If no experiment has that id.
            CheckpointStateError: If one of its checkpoints is in the model registry.
        """
        mine = trials.c.experiment_id == experiment_id
        with self._write() as connection:
            require(connection, experiments, experiment_id)
            refuse_registered(
                connection,
                f"checkpoints of experiment {experiment_id} are",
                checkpoints.c.experiment_id == experiment_id,
                remedy="Delete those versions first.",
            )
            values = validation_values
            connection.execute(delete(values).where(values.c.experiment_id == experiment_id))
            numbers = select(trials.c.id).where(mine)
            for own in (metrics, events, event_logs, cursors, runs):
                connection.execute(delete(own).where(own.c.trial_id.in_(numbers)))
            for own in (checkpoints, search_events, experiment_labels, submissions, trials):
                connection.execute(delete(own).where(own.c.experiment_id == experiment_id))
            connection.execute(delete(experiments).where(experiments.c.id == experiment_id))


def _filters(
    states: Iterable[ExperimentState] | None,
    archived: bool | None,
    labels: Iterable[str],
    where: ColumnElement[bool] | None,
) -> list[ColumnElement[bool]]:
    which: list[ColumnElement[bool]] = []
    if states is not None:
        which.append(experiments.c.state.in_(states))
    if archived is not None:
        which.append(experiments.c.archived == archived)
    for label in labels:
        owners = select(experiment_labels.c.experiment_id).where(
            experiment_labels.c.label == label[:MAX_INDEXED]
        )
        which.append(experiments.c.id.in_(owners))
    if where is not None:
        which.append(where)
    return which


def _named(connection: Connection, which: list[ColumnElement[bool]], name: str) -> list[int]:
    """Return ids, oldest first, of those with a text in their name.

    Databases differ in how they compare letters beyond ASCII; Python does it one way.
    """
    query = select(experiments.c.id, experiments.c.name).where(*which).order_by(experiments.c.id)
    wanted = name.casefold()
    return [row.id for row in connection.execute(query) if wanted in row.name.casefold()]


def replace_labels(connection: Connection, experiment_id: int, labels: Iterable[str]) -> None:
    """Write the labels by which an experiment is found."""
    mine = experiment_labels.c.experiment_id == experiment_id
    connection.execute(delete(experiment_labels).where(mine))
    for label in sorted({label[:MAX_INDEXED] for label in labels}):
        connection.execute(
            experiment_labels.insert().values(label=label, experiment_id=experiment_id)
        )
