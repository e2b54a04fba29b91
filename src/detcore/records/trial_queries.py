"""Queries on trials and their runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

from sqlalchemy import Connection, Select, and_, func, select, update
from sqlalchemy.sql.elements import ColumnElement

from detcore.contract.values import TrialSettings, TrialState
from detcore.log.reading import event_log_path
from detcore.records.metric_queries import select_best
from detcore.records.queries import (
    Queries,
    check_strings,
    find_row,
    make_in_conditions,
    now,
    require_row,
    update_row,
)
from detcore.records.record_classes import RunRecord, TrialRecord, read_rows
from detcore.records.schema import cursors, experiments, metrics, runs, trials, validation_values


class TrialQueries(Queries):
    """Create, read, start and update trials, and compare their best metrics."""

    def create_trial(self, *, experiment_id: int, hparams: Mapping[str, object], seed: int) -> int:
        """Record a new trial, in state PAUSED until it is started.

        Returns:
            The id, from 1, unique across all experiments.

        Raises:
            NotFoundError: If no experiment has this id.
        """
        with self._begin_write() as connection:
            require_row(connection, experiments, experiment_id)
            return insert_trial(connection, experiment_id, hparams=hparams, seed=seed)

    def get_trial(self, trial_id: int) -> TrialRecord:
        """Return a trial.

        Raises:
            NotFoundError: If no trial has this id; the message lists the valid ids.
        """
        with self._begin_read() as connection:
            records = read_trials(connection, trials.c.id == trial_id)
            if not records:
                require_row(connection, trials, trial_id)
            return records[0]

    def get_trials(self, trial_ids: Iterable[int]) -> dict[int, TrialRecord]:
        """Return trials by id. Unknown ids are left out."""
        with self._begin_read() as connection:
            return {
                trial.id: trial
                for condition in make_in_conditions(trials.c.id, list(trial_ids))
                for trial in read_trials(connection, condition)
            }

    def list_trials(
        self,
        experiment_id: int,
        *,
        states: Iterable[TrialState] | None = None,
        newest_first: bool = False,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[TrialRecord]:
        """Return the trials of an experiment.

        Args:
            experiment_id: The experiment.
            states: Return only trials in one of these states; None = all.
            newest_first: Whether to sort from the newest to the oldest.
            limit: Maximum number of results; None = all.
            offset: Number of results to skip.

        Raises:
            NotFoundError: If no experiment has this id.
        """
        which = trials.c.experiment_id == experiment_id
        if states is not None:
            which = and_(which, trials.c.state.in_(states))
        order = trials.c.id.desc() if newest_first else trials.c.id
        with self._begin_read() as connection:
            if limit is not None or offset:
                page = select(trials.c.id).where(which).order_by(order).limit(limit).offset(offset)
                which = trials.c.id.in_(connection.execute(page).scalars().all())
            records = read_trials(connection, which, newest_first=newest_first)
            if not records:
                require_row(connection, experiments, experiment_id)
            return records

    def count_trials(self) -> dict[int, int]:
        """Return the number of trials by experiment id. Experiments without trials are left out."""
        with self._begin_read() as connection:
            rows = connection.execute(
                select(trials.c.experiment_id, func.count()).group_by(trials.c.experiment_id)
            )
            return {row[0]: row[1] for row in rows}

    def set_trial_state(
        self, trial_id: int, state: TrialState, *, error: str | None = None
    ) -> None:
        """Record the state of a trial.

        Args:
            trial_id: The trial.
            state: The new state.
            error: Reason for a failure, in one line; None removes an earlier reason.

        Raises:
            NotFoundError: If no trial has this id.
        """
        running = state == TrialState.RUNNING
        self._update_row(
            trials,
            trial_id,
            state=state,
            error=error,
            ended_at=None if running else now(),
        )

    def set_trial_dir(self, trial_id: int, path: str) -> None:
        """Record the directory of a trial's files. Call this before the first `start_run`.

        Raises:
            NotFoundError: If no trial has this id.
        """
        self._update_row(trials, trial_id, trial_dir=path)

    def set_trial_job(self, trial_id: int, job: str) -> None:
        """Record the job in which a launcher runs the newest run.

        Raises:
            NotFoundError: If no trial has this id.
        """
        self._update_row(trials, trial_id, job=job)

    def list_running_jobs(self, experiment_id: int) -> list[str]:
        """Return the jobs of running trials. They may run on after their runner was killed."""
        is_running = (trials.c.state == TrialState.RUNNING) & trials.c.job.is_not(None)
        query = select(trials.c.job).where(trials.c.experiment_id == experiment_id, is_running)
        with self._begin_read() as connection:
            return list(connection.scalars(query.order_by(trials.c.id)))

    def update_trial(
        self,
        trial_id: int,
        *,
        notes: str | None = None,
        labels: Iterable[str] | None = None,
        add_labels: Iterable[str] = (),
        remove_labels: Iterable[str] = (),
    ) -> TrialRecord:
        """Change a trial's notes or labels. None keeps a value.

        Args:
            trial_id: The trial.
            notes: The new notes.
            labels: Replace all labels of the trial.
            add_labels: Labels to add.
            remove_labels: Labels to remove.

        Raises:
            NotFoundError: If no trial has this id.
            ConfigError: If the labels are not a list of strings.
        """
        added = set(check_strings("labels", add_labels))
        removed = set(check_strings("labels", remove_labels))
        new_labels = None if labels is None else check_strings("labels", labels)
        changes: dict[str, object] = {} if notes is None else {"notes": notes}
        with self._begin_write() as connection:
            if new_labels is None and (added or removed):
                query = select(trials.c.labels).where(trials.c.id == trial_id).with_for_update()
                new_labels = connection.execute(query).scalar() or []
            if new_labels is not None:
                changes["labels"] = sorted({*new_labels, *added} - removed)
            if changes:
                update_row(connection, trials, trial_id, **changes)
            else:
                require_row(connection, trials, trial_id)
            return read_trials(connection, trials.c.id == trial_id)[0]

    def start_run(self, trial_id: int, *, observers: Iterable[str] = ()) -> int:
        """Record that the calling process starts a trial, and set its state to RUNNING.

        Args:
            trial_id: The trial.
            observers: Names of the plugins that receive the events of this run.

        Returns:
            The number of this run, from 1. A number is skipped if the trial's directory already
            contains its event log. Such a log belongs to another or a deleted database, and its
            records must not be mixed with the records of this run.

        Raises:
            NotFoundError: If no trial has this id.
        """
        with self._begin_write() as connection:
            trial_dir = find_row(connection, trials, trial_id).trial_dir
            last = connection.execute(
                select(func.max(runs.c.run_id)).where(runs.c.trial_id == trial_id)
            ).scalar()
            run_id = _free_run_id((last or 0) + 1, trial_dir)
            connection.execute(
                runs.insert().values(trial_id=trial_id, run_id=run_id, started_at=now())
            )
            run = {"trial_id": trial_id, "run_id": run_id}
            start = {"byte_offset": 0, "trying": 0, "is_finished": False}
            for plugin in observers:
                connection.execute(cursors.insert().values(plugin=plugin, **run, **start))
            connection.execute(
                update(trials)
                .where(trials.c.id == trial_id)
                .values(state=TrialState.RUNNING, error=None, ended_at=None, job=None)
            )
            return run_id

    def list_runs(self, trial_id: int) -> list[RunRecord]:
        """Return the runs of a trial, oldest first."""
        query = select(runs).where(runs.c.trial_id == trial_id)
        return self._read_all(RunRecord, query.order_by(runs.c.run_id))

    def get_best_value_of_others(
        self, trial_id: int, metric: str, *, smaller_is_better: bool
    ) -> float | None:
        """Return the best value of a validation metric over the other trials of an experiment.

        Args:
            trial_id: The trial to leave out.
            metric: Name of the metric.
            smaller_is_better: Whether a smaller value is better.

        Returns:
            The value, or None if no other trial has reported the metric.
        """
        values = validation_values.c
        owner = select(trials.c.experiment_id).where(trials.c.id == trial_id).scalar_subquery()
        is_other_trial = and_(values.experiment_id == owner, values.trial_id != trial_id)
        query = select(values.value).select_from(metrics)
        best = self._read_value(select_best(query, is_other_trial, metric, smaller_is_better))
        return None if best is None else float(best)

    def get_best_value_until(
        self, trial_id: int, settings: TrialSettings, steps_completed: int
    ) -> float | None:
        """Return the best value of the searcher's metric that a trial reported until a step.

        If several runs reported a step, all their values count, because each of them was used for
        decisions.

        Args:
            trial_id: The trial.
            settings: The settings that name the metric.
            steps_completed: The last step that counts.
        """
        if settings.metric is None:
            return None
        values = validation_values.c
        best = func.min(values.value) if settings.smaller_is_better else func.max(values.value)
        query = (
            select(best)
            .select_from(validation_values)
            .join(metrics, metrics.c.id == values.metric_id)
            .where(
                values.trial_id == trial_id,
                values.name == settings.metric,
                metrics.c.steps_completed <= steps_completed,
            )
        )
        value = self._read_value(query)
        return None if value is None else float(value)


def insert_trial(
    connection: Connection,
    experiment_id: int,
    *,
    hparams: Mapping[str, object],
    seed: int,
    search_index: int | None = None,
) -> int:
    """Add a trial in state PAUSED, and return its id."""
    created = connection.execute(
        trials.insert().values(
            experiment_id=experiment_id,
            state=TrialState.PAUSED,
            hparams=hparams,
            seed=seed,
            search_index=search_index,
            num_restarts=0,
            labels=[],
            notes="",
            created_at=now(),
        )
    )
    return int(created.inserted_primary_key[0])  # type: ignore[index]  # of a single row


def read_trials(
    connection: Connection, which: ColumnElement[bool], *, newest_first: bool = False
) -> list[TrialRecord]:
    """Return the trials that satisfy a condition, with their newest runs, sorted by id."""
    newest = (
        select(runs.c.trial_id, func.max(runs.c.run_id).label("run_id"))
        .join(trials, trials.c.id == runs.c.trial_id)
        .where(which)
        .group_by(runs.c.trial_id)
        .subquery()
    )
    query: Select[tuple[object, ...]] = select(runs).join(
        newest, and_(newest.c.trial_id == runs.c.trial_id, newest.c.run_id == runs.c.run_id)
    )
    current = {run.trial_id: run for run in read_rows(RunRecord, connection.execute(query))}
    order = trials.c.id.desc() if newest_first else trials.c.id
    rows = connection.execute(select(trials).where(which).order_by(order))
    return [
        dataclasses.replace(trial, current_run=current.get(trial.id))
        for trial in read_rows(TrialRecord, rows)
    ]


def _free_run_id(first: int, trial_dir: str | None) -> int:
    run_id = first
    while trial_dir is not None and event_log_path(Path(trial_dir), run_id).exists():
        run_id += 1
    return run_id
