"""Queries on experiments."""

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
    find_row,
    now,
    require_row,
    update_row,
    update_rows,
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
"""Number of the lock that a server holds while it starts the runners of its experiments."""
_CLAIMED = (ExperimentState.PAUSED, ExperimentState.ERROR)


class ExperimentQueries(Queries):
    """Create, read, update and delete experiments."""

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

        Secrets in the configuration and in the file are masked; see `save_secrets`.

        Args:
            config: The configuration with defaults; JSON values.
            config_text: Content of the experiment file, or None.
            model_dir: Directory of the user's code.
            name: Name in lists.
            place: Called in the transaction with the new id, before other processes see the record.
                Returns `model_dir`. If it raises, nothing is recorded.
            script_start: Identifies the process of a standalone script.

        Returns:
            The id, from 1.
        """
        hidden, text = hide_secrets(config, config_text)
        with self._begin_write() as connection:
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
                update_row(connection, experiments, number, model_dir=folder)
            return number

    def change_config(
        self,
        experiment_id: int,
        *,
        config: Mapping[str, object],
        changes: Mapping[str, Sequence[object]],
    ) -> None:
        """Replace the configuration of an experiment, and add an event to each of its trials.

        Secrets in the configuration are masked; see `save_secrets`.

        Args:
            experiment_id: The experiment.
            config: The complete new configuration; JSON values.
            changes: Old and new values by dotted name, without secrets. They are the payload of the
                events, which have the kind "config".

        Raises:
            NotFoundError: If no experiment has this id.
        """
        hidden, _ = hide_secrets(config, None)
        with self._begin_write() as connection:
            update_row(connection, experiments, experiment_id, config=hidden)
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
            NotFoundError: If no experiment has this id; the message lists the valid ids.
        """
        with self._begin_read() as connection:
            return read_rows(ExperimentRecord, [find_row(connection, experiments, experiment_id)])[
                0
            ]

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
            states: Return only experiments in one of these states; None = all.
            archived: True for archived experiments, False for the others; None = all.
            labels: Return only experiments with all these labels in their configuration.
            name: Return only experiments whose name contains this string, ignoring case.
            where: Return only experiments that satisfy this condition on the table `experiments`.
            newest_first: Whether to sort from the newest to the oldest.
            limit: Maximum number of results; None = all.
            offset: Number of results to skip.
        """
        which = _make_conditions(states, archived, labels, where)
        order = experiments.c.id.desc() if newest_first else experiments.c.id
        query = select(experiments).where(*which).order_by(order)
        with self._begin_read() as connection:
            if name:
                ids = _find_by_name(connection, which, name)[:: -1 if newest_first else 1]
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
        """Return the number of experiments that `list_experiments` selects without a limit."""
        which = _make_conditions(states, archived, labels, where)
        with self._begin_read() as connection:
            if name:
                return len(_find_by_name(connection, which, name))
            query = select(func.count()).select_from(experiments).where(*which)
            return int(connection.execute(query).scalar() or 0)

    def set_experiment_state(
        self, experiment_id: int, state: ExperimentState, *, error: str | None = None
    ) -> None:
        """Record the state of an experiment.

        Args:
            experiment_id: The experiment.
            state: The new state.
            error: Reason for a failure, in one line; None removes an earlier reason.

        Raises:
            NotFoundError: If no experiment has this id.
        """
        ended_at = None if state == ExperimentState.RUNNING else now()
        self._update_row(experiments, experiment_id, state=state, error=error, ended_at=ended_at)

    def open_lock(self, experiment_id: int, home: Path) -> RunnerLock:
        """Return the lock of an experiment, not yet acquired. The caller closes it.

        Args:
            experiment_id: The experiment.
            home: Directory of the lock file if the records are on a server.
        """
        return RunnerLock(self._engine, experiment_id, home)

    def find_runner(self, experiment_id: int) -> Runner | None:
        """Return the process that runs an experiment, or None."""
        return find_runner(self._engine, experiment_id)

    def is_experiment_alive(self, experiment_id: int) -> bool:
        """Return whether a process runs an experiment, or a server will start it."""
        if self.find_runner(experiment_id) is not None:
            return True
        here = submissions.c.experiment_id == experiment_id
        query = select(submissions.c.phase).where(here, submissions.c.phase != "ENDED")
        return self._read_value(query) is not None and self.find_runner(SERVER_QUEUE) is not None

    def observe_experiment(self, experiment_id: int) -> tuple[ExperimentRecord, bool]:
        """Return an experiment, and whether it is RUNNING and alive; see `is_experiment_alive`.

        An experiment that ends during the call is not reported as killed. Its runner records the
        final state before it releases the lock, so the record is read again.

        Raises:
            NotFoundError: If no experiment has this id.
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
        """Claim an experiment that has ended, and set its state to RUNNING.

        If several processes claim it concurrently, exactly one succeeds, even across machines.

        Args:
            experiment_id: The experiment.
            states: The states in which it can be claimed.
            also: Called in the transaction if the claim succeeds; writes further records.
            script_start: As for `create_experiment`.

        Returns:
            Whether the claim succeeded. False also if no experiment has this id.
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
        with self._begin_write() as connection:
            claimed = update_rows(connection, experiments, *which, **changed)
            if claimed and also is not None:
                also(connection)
            return claimed

    def list_script_runs(self, *, start: str) -> list[ExperimentRecord]:
        """Return the experiments that a run of a script has opened, in the order of its calls."""
        query = select(experiments).where(experiments.c.script_start == start)
        records = self._read_all(ExperimentRecord, query)
        return sorted(records, key=lambda record: record.script_call)

    def list_runs_after(self, first: ExperimentRecord) -> list[ExperimentRecord]:
        """Return an experiment and the experiments of later calls, in the order of the calls.

        They include experiments of script runs that continued the run of `first`.
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
        """Record that a script has finished.

        Has no effect unless all experiments that the script opened are COMPLETED. The next run of
        the script does not continue them.
        """
        records = self.list_script_runs(start=start)
        if all(record.state is ExperimentState.COMPLETED for record in records):
            with self._begin_write() as connection:
                of_script = experiments.c.script_start == start
                update_rows(connection, experiments, of_script, script_start=None)

    def delete_experiment(self, experiment_id: int) -> None:
        """Delete an experiment and all its records. The caller deletes the files.

        Its id and the ids of its trials are never reused.

        Raises:
            NotFoundError: If no experiment has this id.
            CheckpointStateError: If one of its checkpoints is in the model registry.
        """
        of_experiment = trials.c.experiment_id == experiment_id
        with self._begin_write() as connection:
            require_row(connection, experiments, experiment_id)
            refuse_registered(
                connection,
                f"checkpoints of experiment {experiment_id} are",
                checkpoints.c.experiment_id == experiment_id,
                remedy="Delete these versions first: detcore model delete MODEL --version N",
            )
            values = validation_values
            connection.execute(delete(values).where(values.c.experiment_id == experiment_id))
            numbers = select(trials.c.id).where(of_experiment)
            for table in (metrics, events, event_logs, cursors, runs):
                connection.execute(delete(table).where(table.c.trial_id.in_(numbers)))
            for table in (checkpoints, search_events, experiment_labels, submissions, trials):
                connection.execute(delete(table).where(table.c.experiment_id == experiment_id))
            connection.execute(delete(experiments).where(experiments.c.id == experiment_id))


def _make_conditions(
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


def _find_by_name(connection: Connection, which: list[ColumnElement[bool]], name: str) -> list[int]:
    """Return the ids of experiments whose name contains a string, oldest first.

    The comparison is done in Python, because databases differ for letters beyond ASCII.
    """
    query = select(experiments.c.id, experiments.c.name).where(*which).order_by(experiments.c.id)
    part = name.casefold()
    return [row.id for row in connection.execute(query) if part in row.name.casefold()]


def replace_labels(connection: Connection, experiment_id: int, labels: Iterable[str]) -> None:
    """Replace the labels in the index of an experiment."""
    of_experiment = experiment_labels.c.experiment_id == experiment_id
    connection.execute(delete(experiment_labels).where(of_experiment))
    for label in sorted({label[:MAX_INDEXED] for label in labels}):
        connection.execute(
            experiment_labels.insert().values(label=label, experiment_id=experiment_id)
        )
