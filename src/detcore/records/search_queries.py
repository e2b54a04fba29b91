"""Queries on searches: their event log, its effects on trials, and requests to their runners."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, func, select, update

from detcore.contract.errors import DatabaseError
from detcore.contract.values import Control, ExperimentState, TrialState
from detcore.records.queries import Queries, find_row, now, require_row, update_row
from detcore.records.schema import experiments, search_events, trials
from detcore.records.trial_queries import insert_trial


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialDraft:
    """A trial that a search creates.

    Attributes:
        search_index: Index in the search, from 0.
    """

    search_index: int
    hparams: Mapping[str, Any]
    seed: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialTarget:
    """The length and the rung that a search sets for a trial."""

    search_index: int
    length: int
    rung: int | None = None


class SearchQueries(Queries):
    """Log the events of searches, update their trials, and store requests to their runners."""

    def add_search_event(
        self,
        experiment_id: int,
        *,
        number: int,
        event: Mapping[str, Any] | None,
        created: Sequence[TrialDraft] = (),
        targets: Sequence[TrialTarget] = (),
        progress: float | None = None,
        folder: Path | None = None,
    ) -> dict[int, int]:
        """Log an event of a search and record its effects, in one transaction.

        Args:
            experiment_id: The experiment.
            number: Number of events logged before this event.
            event: The event, JSON values; None for number 0, the start of the search.
            created: New trials.
            targets: Trials to train further, including new trials.
            progress: Completed fraction of the search, 0 to 1.
            folder: Parent of the trials' directories, which are named after the trials' ids.

        Returns:
            The ids of the new trials, by `search_index`.

        Raises:
            NotFoundError: If no experiment has this id.
            DatabaseError: If another process logged an event of the search in the meantime.
        """
        with self._begin_write() as connection:
            if progress is None:
                require_row(connection, experiments, experiment_id)
            else:
                update_row(connection, experiments, experiment_id, progress=progress)
            _append_event(connection, experiment_id, number, event)
            ids = {
                draft.search_index: _add_trial(connection, experiment_id, draft, folder)
                for draft in created
            }
            for target in targets:
                connection.execute(
                    update(trials)
                    .where(trials.c.experiment_id == experiment_id)
                    .where(trials.c.search_index == target.search_index)
                    .values(length=target.length, rung=target.rung)
                )
            return ids

    def restart_search(self, experiment_id: int) -> None:
        """Delete all events of a search except its start. The trials are not changed."""
        which = (search_events.c.experiment_id == experiment_id, search_events.c.number > 0)
        with self._begin_write() as connection:
            connection.execute(delete(search_events).where(*which))

    def set_search_progress(self, experiment_id: int, progress: float) -> None:
        """Record the progress of a search between two of its events.

        Args:
            experiment_id: The experiment.
            progress: Completed fraction, 0 to 1.

        Raises:
            NotFoundError: If no experiment has this id.
        """
        self._update_row(experiments, experiment_id, progress=progress)

    def list_search_events(self, experiment_id: int) -> list[Mapping[str, Any] | None]:
        """Return the events of a search, oldest first. The first entry, its start, is None."""
        with self._begin_read() as connection:
            rows = connection.execute(
                select(search_events.c.event)
                .where(search_events.c.experiment_id == experiment_id)
                .order_by(search_events.c.number)
            )
            return list(rows.scalars())

    def count_restart(self, trial_id: int) -> int:
        """Record that a trial is restarted after a crash.

        Returns:
            The number of restarts, from 1.

        Raises:
            NotFoundError: If no trial has this id.
        """
        with self._begin_write() as connection:
            more = trials.c.num_restarts + 1
            update_row(connection, trials, trial_id, num_restarts=more)
            return int(find_row(connection, trials, trial_id).num_restarts)

    def request_control(self, experiment_id: int, control: Control | None) -> bool:
        """Record a request to the runner of an experiment. None withdraws it.

        Returns:
            Whether the request was recorded. It is not if the experiment is not RUNNING.

        Raises:
            NotFoundError: If no experiment has this id.
        """
        if control is None:
            return self._update_row(experiments, experiment_id, control=None)
        is_running = experiments.c.state == ExperimentState.RUNNING
        return self._update_row(experiments, experiment_id, is_running, control=control)

    def request_trial_control(self, trial_id: int, control: Control) -> bool:
        """Record a request to end a trial of a search for good.

        Args:
            trial_id: The trial.
            control: CANCEL lets the trial save a checkpoint first; KILL does not.

        Returns:
            Whether the request was recorded. It is not if the trial has ended.

        Raises:
            NotFoundError: If no trial has this id.
        """
        is_open = trials.c.state.in_([TrialState.RUNNING, TrialState.PAUSED])
        return self._update_row(trials, trial_id, is_open, control=control)

    def get_trial_control_requests(self, experiment_id: int) -> dict[int, Control]:
        """Return the requests to end trials of an experiment, by their index in its search."""
        with self._begin_read() as connection:
            rows = connection.execute(
                select(trials.c.search_index, trials.c.control).where(
                    trials.c.experiment_id == experiment_id,
                    trials.c.control.is_not(None),
                    trials.c.search_index.is_not(None),
                )
            )
            return {row.search_index: row.control for row in rows}

    def get_control_request(self, experiment_id: int) -> Control | None:
        """Return the request to the runner of an experiment, or None."""
        query = select(experiments.c.control).where(experiments.c.id == experiment_id)
        control: Control | None = self._read_value(query)
        return control

    def conclude_experiment(
        self,
        experiment_id: int,
        state: ExperimentState,
        *,
        asked: Control | None,
        error: str | None = None,
    ) -> bool:
        """Record how an experiment ended, unless the request to its runner has changed.

        This also clears the request.

        Args:
            experiment_id: The experiment.
            state: The final state.
            asked: The request on which the decision was based.
            error: Reason for a failure, in one line; None removes an earlier reason.

        Returns:
            Whether the state was recorded.

        Raises:
            NotFoundError: If no experiment has this id.
        """
        return self._update_row(
            experiments,
            experiment_id,
            experiments.c.control.is_not_distinct_from(asked),
            state=state,
            error=error,
            ended_at=now(),
            control=None,
        )

    def set_experiment_archived(self, experiment_id: int, archived: bool) -> None:
        """Archive an experiment, so that lists leave it out, or unarchive it.

        Raises:
            NotFoundError: If no experiment has this id.
        """
        self._update_row(experiments, experiment_id, archived=archived)


def _append_event(
    connection: Connection, experiment_id: int, number: int, event: Mapping[str, Any] | None
) -> None:
    """Append an event to the log of a search. Reject an event that is not the next."""
    # Numbers have no gaps. Reading the last number is an index look-up.
    last = connection.execute(
        select(func.max(search_events.c.number)).where(
            search_events.c.experiment_id == experiment_id
        )
    ).scalar()
    logged = 0 if last is None else last + 1
    if logged != number:
        raise DatabaseError(
            f"the search of experiment {experiment_id} has {logged} events, but this "
            f"process has seen {number}.\n"
            "Another runner is working on this experiment. End one of the two runners."
        )
    connection.execute(
        search_events.insert().values(
            experiment_id=experiment_id,
            number=number,
            event=event,
            created_at=now(),
        )
    )


def _add_trial(
    connection: Connection, experiment_id: int, draft: TrialDraft, folder: Path | None
) -> int:
    """Create a trial of a search with its directory, and return its id."""
    trial_id = insert_trial(
        connection,
        experiment_id,
        hparams=draft.hparams,
        seed=draft.seed,
        search_index=draft.search_index,
    )
    if folder is not None:
        update_row(connection, trials, trial_id, trial_dir=str(folder / str(trial_id)))
    return trial_id
