"""The search of an experiment and its log, which contains every event applied to the search."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import DetcoreError
from detcore.records import TrialDraft, TrialTarget
from detcore.run.named_parts import create_search_method
from detcore.run.supervisor import LogEntry
from detcore.search import (
    Create,
    Event,
    Exited,
    ExitReason,
    Operation,
    Search,
    Train,
    Validated,
    event_from_json,
    event_to_json,
)

if TYPE_CHECKING:
    from detcore.config import ExperimentConfig
    from detcore.plugins import PluginManager
    from detcore.records import Database


class SearchLog:
    """The search of an experiment, which records each event before any action follows from it.

    Args:
        database: The records.
        experiment_id: The experiment, whose lock the caller holds.
        config: The experiment's configuration.
        plugins: Provide search methods.
        trials_dir: Parent directory of the trials' directories.

    Attributes:
        search: The search, with the method's decisions so far.
        trial_ids: Ids of the trials, by their index in the search.
        entries: The log at the start of this process.
        rungs: Number of reports of each trial, by index.
        best: Best metric of each trial that has reported, by index.

    Raises:
        SearchError: If the log belongs to another search.
    """

    def __init__(
        self,
        database: Database,
        experiment_id: int,
        config: ExperimentConfig,
        plugins: PluginManager,
        *,
        trials_dir: Path,
    ) -> None:
        self._database = database
        self._experiment_id = experiment_id
        self._create_search_method = functools.partial(create_search_method, config, plugins)
        self._seed = config.reproducibility.experiment_seed
        self._trials_dir = trials_dir
        self._pick = min if config.searcher.smaller_is_better else max
        self.entries: list[LogEntry] = []
        self.rungs: dict[int, int] = {}
        self._exits: dict[int, ExitReason] = {}
        self.best: dict[int, float] = {}
        self.search = Search(self._create_search_method(), seed=self._seed)
        self.trial_ids = {
            trial.search_index: trial.id
            for trial in database.list_trials(experiment_id)
            if trial.search_index is not None
        }
        self.entries.append(LogEntry(None, self.search.first))
        logged = database.list_search_events(experiment_id)
        if logged:
            self._replay_events(logged[1:])
        else:
            self._write_event(None, self.search.first)

    def _replay_events(self, logged: Sequence[Mapping[str, Any] | None]) -> None:
        for document in logged:
            event = event_from_json(document or {})
            operations = self.search.apply(event)
            self._note_event(event)
            self.entries.append(LogEntry(event, operations, (document or {}).get("error")))

    def record_event(
        self, event: Event, *, error: str | None = None
    ) -> tuple[Operation, ...] | None:
        """Apply an event, and log it with the resulting operations.

        A failure that would end the search without any trained trial is not logged, so that the
        trial can be retried.

        Args:
            event: The event.
            error: The error of a trial that ended, in one line.

        Returns:
            The operations, or None if the event was not logged.

        Raises:
            SearchError: If the event is impossible, or the search method fails.
            DatabaseError: If the event cannot be logged.
        """
        if isinstance(event, Exited) and self._would_end_in_failure(event):
            return None
        operations = self.search.apply(event)
        self._note_event(event)
        self._write_event(event, operations, error=error)
        return operations

    def _would_end_in_failure(self, event: Exited) -> bool:
        """Whether this event would end the search without any trained trial."""
        if event.reason is ExitReason.STOPPED:
            return False
        if self.search.num_open > 1:
            return False
        other_trials = [index for index in range(len(self.search.trials)) if index != event.trial]
        if any(
            self._exits.get(index, ExitReason.STOPPED) is ExitReason.STOPPED
            for index in other_trials
        ):
            return False
        search = Search.replay(self._create_search_method(), self.search.events, seed=self._seed)
        try:
            search.apply(event)
        except DetcoreError:
            return False
        return search.is_finished

    def _note_event(self, event: Event) -> None:
        if isinstance(event, Validated):
            self.rungs[event.trial] = self.rungs.get(event.trial, 0) + 1
            previous_best = self.best.get(event.trial, event.metric)
            self.best[event.trial] = self._pick(previous_best, event.metric)
        else:
            self._exits[event.trial] = event.reason

    def _write_event(
        self, event: Event | None, operations: Sequence[Operation], *, error: str | None = None
    ) -> None:
        created = [
            TrialDraft(search_index=operation.trial, hparams=operation.hparams, seed=operation.seed)
            for operation in operations
            if isinstance(operation, Create) and operation.trial not in self.trial_ids
        ]
        targets = [
            TrialTarget(
                search_index=operation.trial,
                length=operation.length,
                rung=self.rungs.get(operation.trial, 0),
            )
            for operation in operations
            if isinstance(operation, Train)
        ]
        document: dict[str, Any] | None = None
        if event is not None:
            document = event_to_json(event)
            if error is not None:
                document["error"] = error
        self.trial_ids |= self._database.add_search_event(
            self._experiment_id,
            number=0 if event is None else len(self.search.events),
            event=document,
            created=created,
            targets=targets,
            progress=self.search.progress,
            folder=self._trials_dir,
        )
