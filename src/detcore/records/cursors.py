"""Cursors of observers: the position up to which each plugin received the events of each run."""

from __future__ import annotations

import dataclasses

from sqlalchemy import select

from detcore.records.queries import Queries, update_rows
from detcore.records.record_classes import ObserverCursor
from detcore.records.schema import cursors, trials


class CursorQueries(Queries):
    """Read and move the cursors that `start_run` creates."""

    def list_cursors(
        self,
        *,
        plugin: str | None = None,
        experiment_id: int | None = None,
        trial_id: int | None = None,
    ) -> list[ObserverCursor]:
        """Return the cursors of unfinished runs, by trial and run.

        Args:
            plugin: Return only cursors of this plugin.
            experiment_id: Return only cursors of this experiment.
            trial_id: Return only cursors of this trial.
        """
        query = (
            select(cursors, trials.c.experiment_id)
            .join(trials, trials.c.id == cursors.c.trial_id)
            .where(~cursors.c.is_finished)
            .order_by(cursors.c.trial_id, cursors.c.run_id, cursors.c.plugin)
        )
        for column, value in (
            (cursors.c.plugin, plugin),
            (trials.c.experiment_id, experiment_id),
            (cursors.c.trial_id, trial_id),
        ):
            if value is not None:
                query = query.where(column == value)
        return self._read_all(ObserverCursor, query)

    def move_cursor(self, cursor: ObserverCursor) -> None:
        """Record a cursor's new position. The caller holds the lock of its deliveries."""
        values = dataclasses.asdict(cursor)
        del values["experiment_id"]
        key = [cursors.c[name] == values.pop(name) for name in ("trial_id", "run_id", "plugin")]
        with self._begin_write() as connection:
            update_rows(connection, cursors, *key, **values)

    def reopen_cursors(self, trial_id: int, run_id: int) -> bool:
        """Let the observers of a run receive further events. Return whether it has observers."""
        run = (cursors.c.trial_id == trial_id, cursors.c.run_id == run_id)
        with self._begin_write() as connection:
            return update_rows(connection, cursors, *run, is_finished=False)
