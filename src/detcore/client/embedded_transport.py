"""The records of this machine, or of the configured database, as a `Transport`."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import stat
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.client.documents import make_document
from detcore.contract.values import ExperimentState, ModelOrderBy

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from detcore.client.documents import (
        Document,
        ExperimentQuery,
        ModelQuery,
        TrialChanges,
        VersionTexts,
    )
    from detcore.client.recorded_checkpoints import CheckpointFiles
    from detcore.environment import Environment
    from detcore.records import (
        CheckpointRecord,
        Database,
        MetricRecord,
        ModelVersionRecord,
        TrialRecord,
        TrialSummary,
    )
    from detcore.storage import StorageBackend


_COMPLETED = "COMPLETED"
# TensorBoard looks for the same part of a file's name.
_EVENTS = "tfevents"


class EmbeddedTransport:
    """Asks a `Database`, and the storages that its records name. `HttpTransport` asks a server.

    Both have the methods of one contract. Arguments and results are what JSON can express; see
    `detcore.client.DOCUMENTS`. Each method that changes something
    returns when the store has accepted the change, and raises what the method of
    `detcore.records.Database` of the same purpose raises. The database is opened at the first
    question.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._lock = threading.Lock()
        self._opened: Database | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def close(self) -> None:
        """Close the database; the next question opens it again."""
        with self._lock:
            self._opened = None
            if self._finalizer is not None:
                self._finalizer()
                self._finalizer = None

    # -- experiments ------------------------------------------------------------------------------

    def get_experiment(self, experiment_id: int) -> Document:
        """Return an experiment."""
        record, is_alive = self.database().observe_experiment(experiment_id)
        return make_document("experiment", record, is_alive=is_alive)

    def list_experiments(self, **query: Unpack[ExperimentQuery]) -> list[Document]:
        """Return experiments by id."""
        database = self.database()
        documents = []
        for record in database.list_experiments(**query):
            is_alive = False
            if record.state is ExperimentState.RUNNING:
                record, is_alive = database.observe_experiment(record.id)
            documents.append(make_document("experiment", record, is_alive=is_alive))
        return documents

    def control_experiment(self, experiment_id: int, action: str) -> None:
        """Do one of: activate, pause, cancel, kill, archive, unarchive, delete."""
        from detcore.client import local_control

        local_control.control(self.database(), self._environment, experiment_id, action)

    def list_trials(
        self, experiment_id: int, *, limit: int | None = None, offset: int = 0
    ) -> list[Document]:
        """Return the trials of an experiment by id."""
        database = self.database()
        found = database.list_trials(experiment_id, limit=limit, offset=offset)
        searcher = database.get_experiment(experiment_id).searcher
        summaries = database.summarize_trials(
            experiment_id,
            metric=searcher.metric,
            smaller_is_better=searcher.smaller_is_better is not False,
            trial_ids=[record.id for record in found],
        )
        return [_list_trial(record, summaries[record.id], searcher.metric) for record in found]

    # -- trials -----------------------------------------------------------------------------------

    def control_trial(self, trial_id: int, action: str) -> None:
        """Do one of: cancel, kill."""
        from detcore.run import control_trial

        control_trial(trial_id, action, database=self.database(), environment=self._environment)

    def get_trial(self, trial_id: int) -> Document:
        """Return a trial."""
        return make_document("trial", self.database().get_trial(trial_id))

    def update_trial(self, trial_id: int, **changes: Unpack[TrialChanges]) -> Document:
        """Change a trial's notes or labels, and return it; None keeps a value."""
        return make_document("trial", self.database().update_trial(trial_id, **changes))

    def list_metrics(
        self, trial_id: int, kind: str, *, limit: int | None = None, offset: int = 0
    ) -> list[Document]:
        """Return the reports of a trial by steps."""
        database = self._with_reports(trial_id)
        records = _part(database.metrics(trial_id, kind), limit, offset)
        return [make_document("report", record) for record in records]

    def read_log(self, trial_id: int, *, position: int, limit: int) -> Document:
        """Return lines of a trial's log from a position on.

        Returns:
            ``lines`` (each ``at, run, rank, stream, text``), the ``position`` behind them, and
            ``is_over``: whether nothing more will come.
        """
        from detcore.records import read_output_log

        database = self.database()
        trial = database.get_trial(trial_id)
        _, is_alive = database.observe_experiment(trial.experiment_id)
        # Known before the lines are read, so that none which came before the end is missed.
        is_over = not is_alive or trial.state in (
            ExperimentState.COMPLETED,
            ExperimentState.ERROR,
        )
        if trial.trial_dir is None:
            return {"lines": [], "position": position, "is_over": is_over}
        lines, behind = read_output_log(Path(trial.trial_dir), position, limit=limit)
        return {
            "lines": [make_document("line", line) for line in lines],
            "position": behind,
            "is_over": is_over,
        }

    def download_event_files(self, trial_id: int, folder: str) -> int:
        """Bring the event files in a folder up to date, and return how many there are."""
        source = Path(self.database().get_trial(trial_id).trial_dir or "")
        files = self.list_event_files(trial_id)
        for file in files:
            target = Path(folder) / file["name"]
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file["name"], target)
        return len(files)

    def list_event_files(self, trial_id: int) -> list[Document]:
        """Return ``name, size`` of a trial's event files, by name.

        Return an empty list for a trial that ran on another machine. Links are left out: they may
        lead anywhere.
        """
        trial_dir = self.database().get_trial(trial_id).trial_dir or ""
        found = []
        for folder, _, names in os.walk(trial_dir):
            for name in names:
                path = os.path.join(folder, name)
                if _EVENTS not in name or not name.isprintable():
                    continue
                with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                    status = os.lstat(path)
                    if stat.S_ISREG(status.st_mode):
                        relative = Path(path).relative_to(trial_dir).as_posix()
                        found.append({"name": relative, "size": status.st_size})
        return sorted(found, key=lambda file: str(file["name"]))

    # -- checkpoints ------------------------------------------------------------------------------

    def get_checkpoint(self, uuid: str) -> Document:
        """Return a checkpoint by its UUID, or by a beginning of it."""
        database = self.database()
        record = database.get_checkpoint(uuid)
        self._take_in(database, experiment_id=record.experiment_id, trial_id=record.trial_id)
        return self._one(database, record)

    def list_checkpoints(
        self, trial_id: int, *, limit: int | None = None, offset: int = 0
    ) -> list[Document]:
        """Return the COMPLETED checkpoints of a trial, oldest first."""
        database = self._with_reports(trial_id)
        records = database.list_checkpoints(trial_id=trial_id, states=[_COMPLETED])
        return self._with_validations(database, _part(records, limit, offset))

    def latest_checkpoint(self, trial_id: int) -> Document | None:
        """Return the COMPLETED checkpoint of a trial with the most steps."""
        database = self._with_reports(trial_id)
        record = database.latest_checkpoint(trial_id)
        return None if record is None else self._one(database, record)

    def top_checkpoints(
        self,
        *,
        experiment_id: int | None,
        trial_id: int | None,
        metric: str | None,
        smaller_is_better: bool | None,
        limit: int | None,
        distinct_trials: bool,
    ) -> Document:
        """Return COMPLETED checkpoints, the best first, those without the metric (or NaN) last.

        Args:
            experiment_id: Of this experiment, or
            trial_id: of this trial.
            metric: A validation metric; None: the searcher's.
            smaller_is_better: None: as the experiment's searcher is configured.
            limit: How many at most; None: all.
            distinct_trials: Whether to return only the best one of each trial.

        Returns:
            ``metric``, ``smaller_is_better``, and ``checkpoints``: documents with ``value``, a
            number or None.
        """
        database = self.database()
        owner = experiment_id
        if owner is None:
            owner = database.get_trial(trial_id or 0).experiment_id
        self._take_in(database, experiment_id=owner, trial_id=trial_id)
        searcher = database.get_experiment(owner).searcher
        metric = searcher.metric or "" if metric is None else metric
        if smaller_is_better is None:
            smaller_is_better = searcher.smaller_is_better is not False
        ranked = database.top_checkpoints(
            experiment_id=experiment_id,
            trial_id=trial_id,
            metric=metric,
            smaller_is_better=smaller_is_better,
            limit=limit,
            distinct_trials=distinct_trials,
        )
        documents = self._documents(
            database, [(found.checkpoint, found.validation) for found in ranked]
        )
        for document, found in zip(documents, ranked, strict=True):
            document["value"] = found.value
            document["value_steps"] = found.value_steps
        return {
            "metric": metric,
            "smaller_is_better": smaller_is_better,
            "checkpoints": documents,
        }

    def add_checkpoint_metadata(self, uuid: str, metadata: Document) -> Document:
        """Add to a checkpoint's metadata, and return the checkpoint."""
        database = self.database()
        return self._one(database, database.add_checkpoint_metadata(uuid, metadata))

    def remove_checkpoint_metadata(self, uuid: str, keys: list[str]) -> Document:
        """Remove keys from a checkpoint's metadata, and return the checkpoint."""
        database = self.database()
        return self._one(database, database.remove_checkpoint_metadata(uuid, keys))

    def delete_checkpoint(self, uuid: str, globs: list[str] | None) -> Document:
        """Delete a checkpoint's files, or those that match, and return the checkpoint."""
        database = self.database()
        with self._files() as files:
            files.delete(database.get_checkpoint(uuid), globs)
        return self._one(database, database.get_checkpoint(uuid))

    def download_checkpoint(self, uuid: str, folder: str) -> None:
        """Put a checkpoint's files into a folder, unless they are there."""
        with self._files() as files:
            files.copy(uuid, Path(folder))

    @contextlib.contextmanager
    def open_checkpoint(self, uuid: str) -> Iterator[tuple[CheckpointRecord, StorageBackend]]:
        """Yield a checkpoint that can be read, and the storage that it is in.

        Raises:
            CheckpointStateError: If it is not complete, or was deleted.
        """
        with self._files() as files:
            record = files.readable(uuid)
            yield record, files.storage(record)

    def _files(self) -> CheckpointFiles:
        from detcore.client.recorded_checkpoints import CheckpointFiles

        return CheckpointFiles(self.database(), self._environment)

    # -- models -----------------------------------------------------------------------------------

    def create_model(
        self, name: str, description: str, metadata: Document, labels: list[str]
    ) -> Document:
        """Add a model."""
        record = self.database().create_model(
            name, description=description, metadata=metadata, labels=labels
        )
        return make_document("model", record)

    def get_model(self, model: str | int) -> Document:
        """Return a model by its name or its id."""
        return make_document("model", self.database().get_model(model))

    def list_models(self, **query: Unpack[ModelQuery]) -> list[Document]:
        """Return models."""
        return [make_document("model", record) for record in self.database().list_models(**query)]

    def update_model(
        self, model: str | int, *, description: str | None, labels: list[str] | None
    ) -> Document:
        """Change a model's description or labels; None keeps a value."""
        record = self.database().update_model(model, description=description, labels=labels)
        return make_document("model", record)

    def set_model_archived(self, model: str | int, archived: bool) -> Document:
        """Put a model away, or bring it back."""
        return make_document("model", self.database().set_model_archived(model, archived))

    def add_model_metadata(self, model: str | int, metadata: Document) -> Document:
        """Add to a model's metadata."""
        return make_document("model", self.database().add_model_metadata(model, metadata))

    def remove_model_metadata(self, model: str | int, keys: list[str]) -> Document:
        """Remove keys from a model's metadata."""
        return make_document("model", self.database().remove_model_metadata(model, keys))

    def delete_model(self, model: str | int) -> None:
        """Delete a model and its versions; checkpoints stay."""
        self.database().delete_model(model)

    def register_version(
        self, model: str | int, checkpoint_uuid: str, **given: Unpack[VersionTexts]
    ) -> Document:
        """Make a checkpoint the next version of a model, and return the version."""
        database = self.database()
        record = database.register_version(model, checkpoint_uuid, **given)
        return self._versions(database, model, [record])[0]

    def get_version(self, model: str | int, number: int) -> Document | None:
        """Return a version of a model, 0 for the latest; None if it does not exist."""
        database = self.database()
        record = database.get_version(model, number)
        return None if record is None else self._versions(database, model, [record])[0]

    def list_versions(
        self, model: str | int, *, order_by: int, limit: int | None = None, offset: int = 0
    ) -> list[Document]:
        """Return the versions of a model by number."""
        database = self.database()
        records = database.list_versions(model, order_by=ModelOrderBy(order_by))
        return self._versions(database, model, _part(records, limit, offset))

    def delete_version(self, model: str | int, number: int) -> None:
        """Delete a version of a model; its checkpoint stays."""
        self.database().delete_version(model, number)

    # -- shared -----------------------------------------------------------------------------------

    def records(self) -> Database:
        """Return the records, with everything in them that workers have reported so far."""
        from detcore.records import ingest_event_logs

        database = self.database()
        ingest_event_logs(database, self._environment.home)
        return database

    def database(self) -> Database:
        """Return the records, opened."""
        with self._lock:
            if self._opened is None:
                from detcore.records import Database

                self._opened = Database.open(self._environment.database_url)
                self._finalizer = weakref.finalize(self, self._opened.close)
            return self._opened

    def _take_in(self, database: Database, *, experiment_id: int, trial_id: int | None) -> None:
        from detcore.records import ingest_reports

        home = self._environment.home
        ingest_reports(database, home, experiment_id=experiment_id, trial_id=trial_id)

    def _with_reports(self, trial_id: int) -> Database:
        """Return the records, with everything in them that a trial has reported so far."""
        database = self.database()
        owner = database.get_trial(trial_id).experiment_id
        self._take_in(database, experiment_id=owner, trial_id=trial_id)
        return database

    def _one(self, database: Database, record: CheckpointRecord) -> Document:
        return self._with_validations(database, [record])[0]

    def _with_validations(
        self, database: Database, records: Sequence[CheckpointRecord]
    ) -> list[Document]:
        """Return checkpoints with the validations at their steps."""
        validations = database.checkpoint_validations([record.uuid for record in records])
        return self._documents(
            database, [(record, validations.get(record.uuid)) for record in records]
        )

    def _versions(
        self, database: Database, model: str | int, records: Sequence[ModelVersionRecord]
    ) -> list[Document]:
        name = database.get_model(model).name
        checkpoints = self._with_validations(
            database, [database.get_checkpoint(record.checkpoint_uuid) for record in records]
        )
        return [
            make_document("version", record, model_name=name, checkpoint=checkpoint)
            for record, checkpoint in zip(records, checkpoints, strict=True)
        ]

    def _documents(
        self, database: Database, pairs: Sequence[tuple[CheckpointRecord, MetricRecord | None]]
    ) -> list[Document]:
        """Return checkpoints with data of their experiments and trials."""
        # Trials first: they are deleted with their experiment, and reading that one raises then.
        owners = database.get_trials({record.trial_id for record, _ in pairs})
        numbers = {record.experiment_id for record, _ in pairs}
        configs = {number: database.get_experiment(number).config for number in numbers}
        return [
            make_document(
                "checkpoint",
                record,
                experiment_config=copy.deepcopy(configs[record.experiment_id]),
                hparams=copy.deepcopy(owners[record.trial_id].hparams),
                validation=validation and make_document("validation", validation),
            )
            for record, validation in pairs
        ]


def _part(records: list[Any], limit: int | None = None, offset: int = 0) -> list[Any]:
    return records[offset : None if limit is None else offset + limit]


def _list_trial(record: TrialRecord, summary: TrialSummary, metric: str | None) -> Document:
    best = summary.best
    return make_document(
        "listed",
        record,
        steps_completed=max(summary.steps_completed, summary.steps_saved),
        value=None if best is None or metric is None else float(best.metrics[metric]),
        value_steps=None if best is None else best.steps_completed,
        latest_checkpoint=summary.latest_checkpoint,
    )
