"""Searches: the log of their events, what follows from it, and what their runners are asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, func, select, update

from detcore.contract.errors import DatabaseError
from detcore.contract.values import Control, ExperimentState, TrialState
from detcore.records.queries import Queries, change, find, now, require
from detcore.records.schema import experiments, search_events, trials
from detcore.records.trial_queries import insert_trial


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialDraft:
    """A trial that a search wants created.

    Attributes:
        search_index: Its number in the search, from 0.
    """

    search_index: int
    hparams: Mapping[str, Any]
    seed: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialTarget:
    """How far a search wants a trial trained: the trial's `search_index`, length and rung."""

    search_index: int
    length: int
    rung: int | None = None


class SearchQueries(Queries):
    """Log what happens in searches, with the trials that follow, and pass on requests."""

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
        """Log an event of a search and record what follows from it, in one transaction.

        Args:
            experiment_id: Which experiment.
            number: Its place in the log: the number of events logged before it.
            event: The event, JSON values; None at the search's beginning, number 0.
            created: New trials.
            targets: Trials, new ones among them, that are to be trained further.
            progress: How much of the search is done, 0 to 1.
            folder: The folder in which trials have their folders; each is named after its id.

        Returns:
            The ids of the new trials, by `search_index`.

        Raises:
            NotFoundError: If there is no such experiment.
            DatabaseError: If another process logged an event of the search meanwhile.
        """
        with self._write() as connection:
            if progress is None:
                require(connection, experiments, experiment_id)
            else:
                change(connection, experiments, experiment_id, progress=progress)
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
        """Remove the events of a search but for its beginning; its trials stay as they are."""
        which = (search_events.c.experiment_id == experiment_id, search_events.c.number > 0)
        with self._write() as connection:
            connection.execute(delete(search_events).where(*which))

    def set_search_progress(self, experiment_id: int, progress: float) -> None:
        """Record how much of a search is done between two of its events.

        Args:
            experiment_id: Which experiment.
            progress: 0 to 1.

        Raises:
            NotFoundError: If there is no such experiment.
        """
        self._change(experiments, experiment_id, progress=progress)

    def list_search_events(self, experiment_id: int) -> list[Mapping[str, Any] | None]:
        """Return the log of a search, oldest first; the first entry, its beginning, is None."""
        with self._read() as connection:
            rows = connection.execute(
                select(search_events.c.event)
                .where(search_events.c.experiment_id == experiment_id)
                .order_by(search_events.c.number)
            )
            return list(rows.scalars())

    def count_restart(self, trial_id: int) -> int:
        """Note that a trial is started again after a crash.

        Returns:
            How often that was so by now, from 1.

        Raises:
            NotFoundError: If no trial has that id.
        """
        with self._write() as connection:
            more = trials.c.num_restarts + 1
            change(connection, trials, trial_id, num_restarts=more)
            return int(find(connection, trials, trial_id).num_restarts)

    def request_control(self, experiment_id: int, control: Control | None) -> bool:
        """Ask the runner of an experiment to do something; None takes it back.

        Returns:
            Whether that is recorded. Nothing can be asked of one that is not RUNNING.

        Raises:
            NotFoundError: If no experiment has that id.
        """
        if control is None:
            return self._change(experiments, experiment_id, control=None)
        is_running = experiments.c.state == ExperimentState.RUNNING
        return self._change(experiments, experiment_id, is_running, control=control)

    def request_trial_control(self, trial_id: int, control: Control) -> bool:
        """Ask the runner of a search to end one of its trials for good.

        Args:
            trial_id: Which trial.
            control: CANCEL lets it checkpoint first; KILL does not.

        Returns:
            Whether that is recorded. Nothing can be asked of one that is over.

        Raises:
            NotFoundError: If no trial has that id.
        """
        is_open = trials.c.state.in_([TrialState.RUNNING, TrialState.PAUSED])
        return self._change(trials, trial_id, is_open, control=control)

    def get_trial_control_requests(self, experiment_id: int) -> dict[int, Control]:
        """Return how trials of an experiment were asked to end, by their index in its search."""
        with self._read() as connection:
            found = connection.execute(
                select(trials.c.search_index, trials.c.control).where(
                    trials.c.experiment_id == experiment_id,
                    trials.c.control.is_not(None),
                    trials.c.search_index.is_not(None),
                )
            )
            return {row.search_index: row.control for row in found}

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

        This clears the request: a later caller finds the experiment ended.

        Args:
            experiment_id: Which.
            state: How it ended.
            asked: The request that was known when that was decided.
            error: The reason for a failure, in one line; None removes an earlier one.

        Returns:
            Whether it was recorded.

        Raises:
            NotFoundError: If no experiment has that id.
        """
        return self._change(
            experiments,
            experiment_id,
            experiments.c.control.is_not_distinct_from(asked),
            state=state,
            error=error,
            ended_at=now(),
            control=None,
        )

    def set_experiment_archived(self, experiment_id: int, archived: bool) -> None:
        """Leave an experiment out of lists, or bring it back.

        Raises:
            NotFoundError: If no experiment has that id.
        """
        self._change(experiments, experiment_id, archived=archived)


def _append_event(
    connection: Connection, experiment_id: int, number: int, event: Mapping[str, Any] | None
) -> None:
    """Append an event to the log of a search; refuse one that is not the next."""
    # Numbers have no gaps, and the last one is a look-up in an index.
    last = connection.execute(
        select(func.max(search_events.c.number)).where(
            search_events.c.experiment_id == experiment_id
        )
    ).scalar()
    logged = 0 if last is None else last + 1
    if logged != number:
        raise DatabaseError(
            f"the search of experiment {experiment_id} has {logged} events, but this "
            f"process knows of {number}.\n"
            "Another runner is at work on it, which must not be: end one of them."
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
    """Create a trial of a search, with its place in the folder of trials; return its id."""
    trial_id = insert_trial(
        connection,
        experiment_id,
        hparams=draft.hparams,
        seed=draft.seed,
        search_index=draft.search_index,
    )
    if folder is not None:
        change(connection, trials, trial_id, trial_dir=str(folder / str(trial_id)))
    return trial_id
