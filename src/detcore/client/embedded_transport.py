"""A `Transport` for the records of this machine, or of the configured database."""

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
# TensorBoard searches for this part of a file name.
_EVENTS = "tfevents"


class EmbeddedTransport:
    """Uses a `Database` and the storages in its records. `HttpTransport` uses a server.

    Both have the same methods. Arguments and results are JSON values; see
    `detcore.client.DOCUMENTS`. A method that changes records returns after the store has accepted
    the change. The errors are the errors of the corresponding method of `detcore.records.Database`.
    The first request opens the database.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._lock = threading.Lock()
        self._opened: Database | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def close(self) -> None:
        """Close the database. The next request opens it again."""
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
        """Perform an action: activate, pause, cancel, kill, archive, unarchive or delete."""
        from detcore.client import local_control

        local_control.control_locally(self.database(), self._environment, experiment_id, action)

    def list_trials(
        self, experiment_id: int, *, limit: int | None = None, offset: int = 0
    ) -> list[Document]:
        """Return the trials of an experiment by id."""
        database = self.database()
        records = database.list_trials(experiment_id, limit=limit, offset=offset)
        searcher = database.get_experiment(experiment_id).searcher
        summaries = database.summarize_trials(
            experiment_id,
            metric=searcher.metric,
            smaller_is_better=searcher.smaller_is_better is not False,
            trial_ids=[record.id for record in records],
        )
        return [
            _make_trial_document(record, summaries[record.id], searcher.metric)
            for record in records
        ]

    # -- trials -----------------------------------------------------------------------------------

    def control_trial(self, trial_id: int, action: str) -> None:
        """Perform an action: cancel or kill."""
        from detcore.run import control_trial

        control_trial(trial_id, action, database=self.database(), environment=self._environment)

    def get_trial(self, trial_id: int) -> Document:
        """Return a trial."""
        return make_document("trial", self.database().get_trial(trial_id))

    def update_trial(self, trial_id: int, **changes: Unpack[TrialChanges]) -> Document:
        """Change a trial's notes or labels, and return the trial. None keeps a value."""
        return make_document("trial", self.database().update_trial(trial_id, **changes))

    def list_metrics(
        self, trial_id: int, kind: str, *, limit: int | None = None, offset: int = 0
    ) -> list[Document]:
        """Return the reports of a trial by steps."""
        database = self._with_reports(trial_id)
        records = _slice_records(database.metrics(trial_id, kind), limit, offset)
        return [make_document("report", record) for record in records]

    def read_log(self, trial_id: int, *, position: int, limit: int) -> Document:
        """Return lines of a trial's log from a position on.

        Returns:
            ``lines`` (each ``at, run, rank, stream, text``), the ``position`` after them, and
            ``is_over``, which is whether the log is complete.
        """
        from detcore.records import read_output_log

        database = self.database()
        trial = database.get_trial(trial_id)
        _, is_alive = database.observe_experiment(trial.experiment_id)
        # Checked before the lines are read, so that no line before the end is missed.
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
        """Update the event files in a directory, and return their number."""
        source = Path(self.database().get_trial(trial_id).trial_dir or "")
        files = self.list_event_files(trial_id)
        for file in files:
            target = Path(folder) / file["name"]
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file["name"], target)
        return len(files)

    def list_event_files(self, trial_id: int) -> list[Document]:
        """Return ``name, size`` of a trial's event files, sorted by name.

        The list is empty for a trial that ran on another machine. Links are left out, because they
        may leave the directory.
        """
        trial_dir = self.database().get_trial(trial_id).trial_dir or ""
        files = []
        for folder, _, names in os.walk(trial_dir):
            for name in names:
                path = os.path.join(folder, name)
                if _EVENTS not in name or not name.isprintable():
                    continue
                with contextlib.suppress(FileNotFoundError):  # removed after it was listed
                    status = os.lstat(path)
                    if stat.S_ISREG(status.st_mode):
                        relative = Path(path).relative_to(trial_dir).as_posix()
                        files.append({"name": relative, "size": status.st_size})
        return sorted(files, key=lambda file: str(file["name"]))

    # -- checkpoints ------------------------------------------------------------------------------

    def get_checkpoint(self, uuid: str) -> Document:
        """Return a checkpoint by its UUID or a prefix of it."""
        database = self.database()
        record = database.get_checkpoint(uuid)
        self._ingest_reports(database, experiment_id=record.experiment_id, trial_id=record.trial_id)
        return self._make_checkpoint_document(database, record)

    def list_checkpoints(
        self, trial_id: int, *, limit: int | None = None, offset: int = 0
    ) -> list[Document]:
        """Return the COMPLETED checkpoints of a trial, oldest first."""
        database = self._with_reports(trial_id)
        records = database.list_checkpoints(trial_id=trial_id, states=[_COMPLETED])
        return self._with_validations(database, _slice_records(records, limit, offset))

    def latest_checkpoint(self, trial_id: int) -> Document | None:
        """Return the COMPLETED checkpoint of a trial with the most steps."""
        database = self._with_reports(trial_id)
        record = database.latest_checkpoint(trial_id)
        return None if record is None else self._make_checkpoint_document(database, record)

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
        """Return COMPLETED checkpoints, the best first.

        Checkpoints without the metric, or with NaN, come last.

        Args:
            experiment_id: Rank checkpoints of this experiment. Pass either this or `trial_id`.
            trial_id: Rank checkpoints of this trial.
            metric: A validation metric; None means the searcher's metric.
            smaller_is_better: None means as in the experiment's searcher.
            limit: Maximum number of results; None = all.
            distinct_trials: Whether to return only the best checkpoint of each trial.

        Returns:
            ``metric``, ``smaller_is_better``, and ``checkpoints``: documents with a ``value`` that
            is a number or None.
        """
        database = self.database()
        owner = experiment_id
        if owner is None:
            owner = database.get_trial(trial_id or 0).experiment_id
        self._ingest_reports(database, experiment_id=owner, trial_id=trial_id)
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
        documents = self._make_checkpoint_documents(
            database, [(item.checkpoint, item.validation) for item in ranked]
        )
        for document, item in zip(documents, ranked, strict=True):
            document["value"] = item.value
            document["value_steps"] = item.value_steps
        return {
            "metric": metric,
            "smaller_is_better": smaller_is_better,
            "checkpoints": documents,
        }

    def add_checkpoint_metadata(self, uuid: str, metadata: Document) -> Document:
        """Add to a checkpoint's metadata, and return the checkpoint."""
        database = self.database()
        return self._make_checkpoint_document(
            database, database.add_checkpoint_metadata(uuid, metadata)
        )

    def remove_checkpoint_metadata(self, uuid: str, keys: list[str]) -> Document:
        """Remove keys from a checkpoint's metadata, and return the checkpoint."""
        database = self.database()
        return self._make_checkpoint_document(
            database, database.remove_checkpoint_metadata(uuid, keys)
        )

    def delete_checkpoint(self, uuid: str, globs: list[str] | None) -> Document:
        """Delete a checkpoint's files, or matching files, and return the checkpoint."""
        database = self.database()
        with self._open_files() as files:
            files.delete_files(database.get_checkpoint(uuid), globs)
        return self._make_checkpoint_document(database, database.get_checkpoint(uuid))

    def download_checkpoint(self, uuid: str, folder: str) -> None:
        """Download a checkpoint's files to a directory that does not contain them yet."""
        with self._open_files() as files:
            files.copy_files(uuid, Path(folder))

    @contextlib.contextmanager
    def open_checkpoint(self, uuid: str) -> Iterator[tuple[CheckpointRecord, StorageBackend]]:
        """Yield a readable checkpoint and its storage.

        Raises:
            CheckpointStateError: If it is not complete, or was deleted.
        """
        with self._open_files() as files:
            record = files.get_readable(uuid)
            yield record, files.open_storage(record)

    def _open_files(self) -> CheckpointFiles:
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
        """Change a model's description or labels. None keeps a value."""
        record = self.database().update_model(model, description=description, labels=labels)
        return make_document("model", record)

    def set_model_archived(self, model: str | int, archived: bool) -> Document:
        """Archive or unarchive a model."""
        return make_document("model", self.database().set_model_archived(model, archived))

    def add_model_metadata(self, model: str | int, metadata: Document) -> Document:
        """Add to a model's metadata."""
        return make_document("model", self.database().add_model_metadata(model, metadata))

    def remove_model_metadata(self, model: str | int, keys: list[str]) -> Document:
        """Remove keys from a model's metadata."""
        return make_document("model", self.database().remove_model_metadata(model, keys))

    def delete_model(self, model: str | int) -> None:
        """Delete a model and its versions. Checkpoints stay."""
        self.database().delete_model(model)

    def register_version(
        self, model: str | int, checkpoint_uuid: str, **texts: Unpack[VersionTexts]
    ) -> Document:
        """Register a checkpoint as the next version of a model, and return the version."""
        database = self.database()
        record = database.register_version(model, checkpoint_uuid, **texts)
        return self._make_version_documents(database, model, [record])[0]

    def get_version(self, model: str | int, number: int) -> Document | None:
        """Return a version of a model (0 = latest), or None if it does not exist."""
        database = self.database()
        record = database.get_version(model, number)
        return (
            None if record is None else self._make_version_documents(database, model, [record])[0]
        )

    def list_versions(
        self, model: str | int, *, order_by: int, limit: int | None = None, offset: int = 0
    ) -> list[Document]:
        """Return the versions of a model, sorted by number."""
        database = self.database()
        records = database.list_versions(model, order_by=ModelOrderBy(order_by))
        return self._make_version_documents(database, model, _slice_records(records, limit, offset))

    def delete_version(self, model: str | int, number: int) -> None:
        """Delete a version of a model. Its checkpoint stays."""
        self.database().delete_version(model, number)

    # -- shared -----------------------------------------------------------------------------------

    def records(self) -> Database:
        """Return the records, including all reports of workers so far."""
        from detcore.records import ingest_event_logs

        database = self.database()
        ingest_event_logs(database, self._environment.home)
        return database

    def database(self) -> Database:
        """Return the open database."""
        with self._lock:
            if self._opened is None:
                from detcore.records import Database

                self._opened = Database.open(self._environment.database_url)
                self._finalizer = weakref.finalize(self, self._opened.close)
            return self._opened

    def _ingest_reports(
        self, database: Database, *, experiment_id: int, trial_id: int | None
    ) -> None:
        from detcore.records import ingest_reports

        home = self._environment.home
        ingest_reports(database, home, experiment_id=experiment_id, trial_id=trial_id)

    def _with_reports(self, trial_id: int) -> Database:
        """Return the records, including all reports of a trial so far."""
        database = self.database()
        owner = database.get_trial(trial_id).experiment_id
        self._ingest_reports(database, experiment_id=owner, trial_id=trial_id)
        return database

    def _make_checkpoint_document(self, database: Database, record: CheckpointRecord) -> Document:
        return self._with_validations(database, [record])[0]

    def _with_validations(
        self, database: Database, records: Sequence[CheckpointRecord]
    ) -> list[Document]:
        """Return documents of checkpoints with the validations at their steps."""
        validations = database.checkpoint_validations([record.uuid for record in records])
        return self._make_checkpoint_documents(
            database, [(record, validations.get(record.uuid)) for record in records]
        )

    def _make_version_documents(
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

    def _make_checkpoint_documents(
        self, database: Database, pairs: Sequence[tuple[CheckpointRecord, MetricRecord | None]]
    ) -> list[Document]:
        """Return documents of checkpoints with data of their experiments and trials."""
        # Trials are read first. If an experiment is deleted meanwhile, reading it raises an error.
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


def _slice_records(records: list[Any], limit: int | None = None, offset: int = 0) -> list[Any]:
    return records[offset : None if limit is None else offset + limit]


def _make_trial_document(
    record: TrialRecord, summary: TrialSummary, metric: str | None
) -> Document:
    best = summary.best
    return make_document(
        "listed",
        record,
        steps_completed=max(summary.steps_completed, summary.steps_saved),
        value=None if best is None or metric is None else float(best.metrics[metric]),
        value_steps=None if best is None else best.steps_completed,
        latest_checkpoint=summary.latest_checkpoint,
    )
