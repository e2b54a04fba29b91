"""Records that the database returns: frozen values, times in UTC."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from detcore._log import decode_document, decode_metrics
from detcore.database._process import ProcessIdentity
from detcore.types import Control, ExperimentState, TrialState

__all__ = [
    "CheckpointRecord",
    "EventRecord",
    "ExperimentRecord",
    "MetricRecord",
    "ModelRecord",
    "ModelVersionRecord",
    "RunRecord",
    "SubmissionRecord",
    "TokenRecord",
    "TrialRecord",
    "UserRecord",
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRecord:
    """An experiment.

    Attributes:
        config: The configuration, defaults applied.
        config_text: The experiment file as it was written, or None.
        process: The process that runs it, or ran it last, or None.
        control: The request to its runner, or None.
        progress: How much of its search is done, 0 to 1, or None.
        archived: Whether lists leave it out.
        notes: A longer text about it, or "".
        ended_at: When it last stopped running; None while its state is RUNNING.
    """

    id: int
    name: str
    state: ExperimentState
    error: str | None
    config: Mapping[str, Any]
    config_text: str | None
    model_dir: str
    process: ProcessIdentity | None
    created_at: datetime.datetime
    ended_at: datetime.datetime | None
    control: Control | None = None
    progress: float | None = None
    archived: bool = False
    notes: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One start of a trial; `process` started it."""

    trial_id: int
    run_id: int
    process: ProcessIdentity
    started_at: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """A trial.

    Attributes:
        state: PAUSED until it is first started.
        trial_dir: Folder of the trial's files, or None.
        current_run: Its newest start, or None.
        search_index: Its number in the experiment's search, from 0, or None.
        length: How far the search wants it trained, in the unit of ``searcher.max_length``, or
            None.
        rung: On which rung of a halving search it is, from 0, or None.
        num_restarts: How often it was started again after a crash.
        ended_at: When it last stopped running; None while its state is RUNNING.
        control: How it was asked to end, alone of its search, or None.
    """

    id: int
    experiment_id: int
    state: TrialState
    error: str | None
    hparams: Mapping[str, Any]
    seed: int
    trial_dir: str | None
    current_run: RunRecord | None
    created_at: datetime.datetime
    ended_at: datetime.datetime | None
    search_index: int | None = None
    length: int | None = None
    rung: int | None = None
    num_restarts: int = 0
    control: Control | None = None

    @property
    def run_id(self) -> int:
        """Number of the newest start; 0 if it was never started."""
        return self.current_run.run_id if self.current_run else 0

    @property
    def host(self) -> str | None:
        """Host of the newest start."""
        return self.current_run.process.host if self.current_run else None

    @property
    def pid(self) -> int | None:
        """Process of the newest start."""
        return self.current_run.process.pid if self.current_run else None

    @property
    def boot_id(self) -> str | None:
        """Which start of the machine the newest start belongs to."""
        return self.current_run.process.boot_id if self.current_run else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricRecord:
    """A report of metrics.

    Attributes:
        kind: "training" or "validation".
        metrics: Values by name; NaN and the infinities are floats.
        batch_metrics: Values of each batch since the last report, oldest first, or None.
        n_records: Over how many records they are, all workers together, or None.
        reported_at: When it was reported; None lets `Database.add_metrics` take the time.
        seq: Number in the run's spool, or None.
    """

    trial_id: int
    run_id: int
    kind: str
    steps_completed: int
    metrics: Mapping[str, Any]
    batch_metrics: Sequence[Mapping[str, Any]] | None = None
    n_records: int | None = None
    reported_at: datetime.datetime | None = None
    seq: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """A record of a spool other than metrics, such as progress.

    An event of kind "damaged" stands for a line whose checksum was wrong.
    """

    trial_id: int
    run_id: int
    seq: int | None
    kind: str
    payload: Mapping[str, Any]
    reported_at: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint.

    Attributes:
        state: ACTIVE (being written), COMPLETED, DAMAGED, PARTIALLY_DELETED, DELETING or
            DELETED.
        metadata: Saved with it, or added by users.
        resources: Its files and their sizes in bytes.
    """

    uuid: str
    trial_id: int
    experiment_id: int
    storage_url: str
    state: str
    steps_completed: int
    metadata: Mapping[str, Any]
    resources: Mapping[str, int]
    started_at: datetime.datetime
    committed_at: datetime.datetime | None
    deleted_at: datetime.datetime | None

    @property
    def size_bytes(self) -> int:
        """Sum of its files."""
        return sum(self.resources.values())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """A model of the registry.

    Attributes:
        name: Unique.
        metadata: The user's own; JSON values.
        archived: Whether it is put away: shown, but not changed any more.
        num_versions: How many versions it has.
        updated_at: When it, or one of its versions, was changed last.
    """

    id: int
    name: str
    description: str
    metadata: Mapping[str, Any]
    labels: tuple[str, ...]
    archived: bool
    num_versions: int
    created_at: datetime.datetime
    updated_at: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersionRecord:
    """A checkpoint in the registry.

    Attributes:
        model_id: Whose version it is.
        number: From 1 within the model, never given twice.
        checkpoint_uuid: The checkpoint.
        name: Its name, or "".
        comment: A line about it, or "".
        notes: A longer text about it, or "".
        metadata: The user's own; JSON values.
    """

    model_id: int
    number: int
    checkpoint_uuid: str
    name: str
    comment: str
    notes: str
    metadata: Mapping[str, Any]
    created_at: datetime.datetime
    updated_at: datetime.datetime


def moment(seconds: float | None) -> Any:
    """Return a time in UTC, or None."""
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def process_of(text: str | None) -> ProcessIdentity | None:
    """Return a process from its column."""
    return None if text is None else ProcessIdentity.from_document(decode_document(text))


def experiment_of(row: Row[Any]) -> ExperimentRecord:
    """Return a row of `experiments`."""
    return ExperimentRecord(
        id=row.id,
        name=row.name,
        state=ExperimentState(row.state),
        error=row.error,
        config=decode_document(row.config),
        config_text=row.config_text,
        model_dir=row.model_dir,
        process=process_of(row.process),
        created_at=moment(row.created_at),
        ended_at=moment(row.ended_at),
        control=None if row.control is None else Control(row.control),
        progress=row.progress,
        archived=bool(row.archived),
        notes=row.notes or "",
    )


def run_of(row: Row[Any]) -> RunRecord:
    """Return a row of `runs`."""
    return RunRecord(
        trial_id=row.trial_id,
        run_id=row.run_id,
        process=ProcessIdentity.from_document(decode_document(row.process)),
        started_at=moment(row.started_at),
    )


def trial_of(row: Row[Any], current_run: RunRecord | None) -> TrialRecord:
    """Return a row of `trials`."""
    return TrialRecord(
        id=row.id,
        experiment_id=row.experiment_id,
        state=TrialState(row.state),
        error=row.error,
        hparams=decode_document(row.hparams),
        seed=row.seed,
        trial_dir=row.trial_dir,
        current_run=current_run,
        created_at=moment(row.created_at),
        ended_at=moment(row.ended_at),
        search_index=row.search_index,
        length=row.length,
        rung=row.rung,
        num_restarts=row.num_restarts,
        control=None if row.control is None else Control(row.control),
    )


def metric_of(row: Row[Any], *, with_batches: bool = True) -> MetricRecord:
    """Return a row of `metrics`."""
    batches = row.batch_metrics if with_batches else None
    return MetricRecord(
        trial_id=row.trial_id,
        run_id=row.run_id,
        kind=row.kind,
        steps_completed=row.steps_completed,
        metrics=decode_metrics(row.metrics),
        batch_metrics=None if batches is None else _batches(decode_metrics(batches)),
        n_records=row.n_records,
        reported_at=moment(row.reported_at),
        seq=row.seq,
    )


def is_batches(value: object) -> bool:
    """Whether a value can be `MetricRecord.batch_metrics`."""
    return isinstance(value, list) and all(isinstance(batch, dict) for batch in value)


def _batches(value: Any) -> list[Mapping[str, Any]] | None:
    """Return the metrics of batches; None for what releases took in that did not look at them."""
    return value if is_batches(value) else None


def event_of(row: Row[Any]) -> EventRecord:
    """Return a row of `events`."""
    return EventRecord(
        trial_id=row.trial_id,
        run_id=row.run_id,
        seq=row.seq,
        kind=row.kind,
        payload=decode_metrics(row.payload),
        reported_at=moment(row.reported_at),
    )


def checkpoint_of(row: Row[Any]) -> CheckpointRecord:
    """Return a row of `checkpoints`."""
    return CheckpointRecord(
        uuid=row.uuid,
        trial_id=row.trial_id,
        experiment_id=row.experiment_id,
        storage_url=row.storage_url,
        state=row.state,
        steps_completed=row.steps_completed,
        metadata=decode_document(row.metadata),
        resources=decode_document(row.resources),
        started_at=moment(row.started_at),
        committed_at=moment(row.committed_at),
        deleted_at=moment(row.deleted_at),
    )


def model_of(row: Row[Any], num_versions: int) -> ModelRecord:
    """Return a row of `models`."""
    # By position, which is faster than by name: registries have thousands of models.
    fields: Any = row
    model_id, name, description, metadata, labels, archived, _, created_at, updated_at = fields
    return ModelRecord(
        id=model_id,
        name=name,
        description=description,
        metadata=decode_document(metadata),
        labels=tuple(decode_document(labels)),
        archived=bool(archived),
        num_versions=num_versions,
        created_at=moment(created_at),
        updated_at=moment(updated_at),
    )


def version_of(row: Row[Any]) -> ModelVersionRecord:
    """Return a row of `model_versions`."""
    return ModelVersionRecord(
        model_id=row.model_id,
        number=row.number,
        checkpoint_uuid=row.checkpoint_uuid,
        name=row.name,
        comment=row.comment,
        notes=row.notes,
        metadata=decode_document(row.metadata),
        created_at=moment(row.created_at),
        updated_at=moment(row.updated_at),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UserRecord:
    """A user of a server.

    Attributes:
        name: Unique.
        password_hash: The server's hash of the password; None: this user cannot log in.
        is_admin: Whether this user may manage the others.
        is_active: Whether this user may log in.
        created_at: Seconds since 1970.
    """

    id: int
    name: str
    password_hash: str | None = dataclasses.field(repr=False)
    is_admin: bool
    is_active: bool
    created_at: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """The user that a token authenticates, and its scope.

    Attributes:
        trial_id: The only trial whose workers may use it; None: good for everything that the user
            may do.
        expires_at: Until when; seconds since 1970.
    """

    user_id: int
    user_name: str
    is_admin: bool
    trial_id: int | None
    expires_at: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRecord:
    """An experiment that was submitted to a server, and its state.

    Attributes:
        user_name: Whose it is.
        submission_id: The identifier that its user gave it.
        phase: ``"QUEUED"``: waits for its turn; ``"STARTED"``: a runner works on it, or will;
            ``"ENDED"``: there is nothing to do for it.
        test_mode: Whether it is a smoke run.
        state: The experiment's.
        process: The process that looks after it, or did so last.
        control: The request to its runner, or None.
    """

    experiment_id: int
    user_id: int
    user_name: str
    submission_id: str
    phase: str
    test_mode: bool
    state: ExperimentState
    process: ProcessIdentity | None
    control: Control | None
