"""Experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sqlalchemy import Connection, delete, func, literal, select
from sqlalchemy.sql.elements import ColumnElement

from detcore.contract.values import ExperimentState
from detcore.records.apply import refuse_registered
from detcore.records.column_types import MAX_INDEXED
from detcore.records.kept_secrets import hide_secrets
from detcore.records.process_identity import identify_this_process, is_alive
from detcore.records.queries import (
    Queries,
    change,
    change_where,
    find,
    now,
    require,
)
from detcore.records.record_classes import ExperimentRecord, ProcessIdentity, read_rows
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
    ) -> int:
        """Record a new experiment, in state RUNNING under the calling process.

        Secrets in the configuration and in the file are starred out; see `keep_secrets`.

        Args:
            config: The configuration, defaults applied; JSON values.
            config_text: The experiment file as it was written, or None.
            model_dir: Folder of the user's code.
            name: Its name in lists.
            place: Called in the transaction with the new id, before other processes see the record:
                returns `model_dir`. If it raises, nothing is recorded.

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
                    process=identify_this_process(),
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

        Secrets in the configuration are starred out; see `keep_secrets`.

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
        """Record where an experiment stands; RUNNING means under the calling process.

        Args:
            experiment_id: Which.
            state: The new state.
            error: The reason for a failure, in one line; None removes an earlier one.

        Raises:
            NotFoundError: If no experiment has that id.
        """
        running = state == ExperimentState.RUNNING
        changed: dict[str, object] = {
            "state": state,
            "error": error,
            "ended_at": None if running else now(),
        }
        if running:
            changed["process"] = identify_this_process()
        self._change(experiments, experiment_id, **changed)

    def experiment_is_alive(self, experiment_id: int) -> bool | None:
        """Return whether the process that runs an experiment is there.

        Returns:
            None if it is on another host, where that cannot be determined.

        Raises:
            NotFoundError: If no experiment has that id.
        """
        return _is_alive(self.get_experiment(experiment_id))

    def observe_experiment(self, experiment_id: int) -> tuple[ExperimentRecord, bool | None]:
        """Return an experiment, and whether the process that runs it is there.

        One that ends just now is not taken for one that was killed: how it ended is recorded
        before its process goes, so that is read once more where the process is gone.

        Returns:
            The experiment, and: False also where it does not run; None if the process is on
            another host, where that cannot be determined.

        Raises:
            NotFoundError: If no experiment has that id.
        """
        record = self.get_experiment(experiment_id)
        while record.state is ExperimentState.RUNNING:
            alive = _is_alive(record)
            before, record = record, record if alive else self.get_experiment(experiment_id)
            if (record.state, record.process) == (before.state, before.process):
                return record, alive
        return record, False

    def claim_experiment(
        self,
        experiment_id: int,
        *,
        states: Iterable[ExperimentState] = _CLAIMED,
        also: Callable[[Connection], object] | None = None,
    ) -> bool:
        """Take over an experiment that has ended: it is RUNNING under this process then.

        Of several processes that try at once, on whatever machines, one does.

        Args:
            experiment_id: Which.
            states: The states in which it can be claimed.
            also: Called in the transaction if this process did; writes further records.

        Returns:
            Whether this process did. False also if no experiment has that id.
        """
        ended = experiments.c.state.in_(states)
        which = (experiments.c.id == experiment_id, ended)
        changed = {"state": ExperimentState.RUNNING, "error": None, "ended_at": None}
        with self._write() as connection:
            claimed = change_where(
                connection, experiments, *which, process=identify_this_process(), **changed
            )
            if claimed and also is not None:
                also(connection)
            return claimed

    def adopt_experiment(self, experiment_id: int) -> bool:
        """Look after a RUNNING experiment from now on, if the process that did so is gone.

        Of several processes that try at once one does.

        Returns:
            Whether it is this one's now, or was so before.
        """
        mine = identify_this_process()
        query = select(experiments.c.process).where(*_runs(experiment_id))
        known: ProcessIdentity | None = self._read_value(query)
        if known is None or known == mine:
            return known == mine
        if is_alive(known) is not False:
            return False
        which = (*_runs(experiment_id), experiments.c.process == known)
        with self._write() as connection:
            return change_where(connection, experiments, *which, process=mine)

    def list_script_runs(self, first_id: int | None = None) -> list[ExperimentRecord]:
        """Return the experiments that one start of a script recorded, in the order of its calls.

        Args:
            first_id: The experiment of the first call. None: the start is the calling process, and
                the experiments are those that it has opened so far.
        """
        mine = experiments.c.process == identify_this_process()
        which = mine if first_id is None else experiments.c.id >= first_id
        query = select(experiments).where(which).order_by(experiments.c.id)
        found = [
            record
            for record in self._read_all(ExperimentRecord, query)
            if record.config.get("is_standalone")
            and (
                first_id in (None, record.id)
                or (record.config.get("script_start") or {}).get("first") == first_id
            )
        ]
        return sorted(found, key=lambda record: record.script_call)

    def finish_script(self) -> None:
        """Record that the calling process, a script, has ended as its author intended.

        Without effect unless all experiments that it opened are COMPLETED. They have no process
        afterwards, so that the next start of the script does not continue this one.
        """
        found = self.list_script_runs()
        if any(record.state is not ExperimentState.COMPLETED for record in found):
            return
        which = experiments.c.id.in_([record.id for record in found])
        with self._write() as connection:
            is_mine = experiments.c.process == identify_this_process()
            change_where(connection, experiments, which, is_mine, process=None)

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

    def is_this_process(self, process: ProcessIdentity) -> bool:
        """Whether a record is of the calling process."""
        return process == identify_this_process()

    def process_is_alive(self, process: ProcessIdentity) -> bool | None:
        """Return whether the process of a record is there; None if that cannot be determined."""
        return is_alive(process)


def _runs(experiment_id: int) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that an experiment is RUNNING."""
    is_running = experiments.c.state == ExperimentState.RUNNING
    return experiments.c.id == experiment_id, is_running


def _is_alive(record: ExperimentRecord) -> bool | None:
    return False if record.process is None else is_alive(record.process)


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
