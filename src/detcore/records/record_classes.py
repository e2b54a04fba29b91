"""Records as `Database` returns them. Their columns are in `detcore.records.schema`."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from detcore.contract.values import Control, ExperimentState, Length, TrialState, Unit

if TYPE_CHECKING:
    from sqlalchemy import Row

    from detcore.data import ResumeComparison

_T = TypeVar("_T")


def read_length(recorded: Any) -> Length | None:
    """Return a length of a recorded configuration, or None. A bare number counts batches.

    The argument may be of any type, because other programs write records, too.
    """
    lengths = recorded if isinstance(recorded, Mapping) else {Unit.BATCHES.value: recorded}
    for unit in Unit:
        count = lengths.get(unit.value)
        if isinstance(count, int) and count > 0:
            return Length(count, unit)
    return None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSearcher:
    """The section ``searcher`` of a recorded configuration. Standalone scripts may have none.

    Attributes:
        metric: The metric that ranks the trials, or None.
        smaller_is_better: None without a metric.
    """

    name: str | None = None
    metric: str | None = None
    smaller_is_better: bool | None = None
    max_length: Length | None = None
    source_checkpoint_uuid: str | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RecordedSearcher:
        """Read the section from a configuration."""
        section: Mapping[str, Any] = config.get("searcher") or {}
        metric = section.get("metric") or None
        return cls(
            name=section.get("name"),
            metric=metric,
            smaller_is_better=section.get("smaller_is_better", True) if metric else None,
            max_length=read_length(section.get("max_length")),
            source_checkpoint_uuid=section.get("source_checkpoint_uuid"),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRecord:
    """An experiment.

    Attributes:
        config: The configuration with defaults.
        config_text: Content of the experiment file, or None.
        script_start: Identifies the last process that ran a standalone script. None if this is not
            a standalone script, or if the script has finished.
        control: The request to its runner, or None.
        progress: Completed fraction of the search, 0 to 1, or None.
        archived: Whether lists leave it out.
        notes: Longer notes, or "".
        ended_at: Time when it last stopped running; None while its state is RUNNING.
    """

    id: int
    name: str
    state: ExperimentState
    error: str | None
    config: Mapping[str, Any]
    config_text: str | None
    model_dir: str
    script_start: str | None
    archived: bool = False
    progress: float | None = None
    created_at: datetime.datetime
    ended_at: datetime.datetime | None
    control: Control | None = None
    notes: str = ""

    @property
    def searcher(self) -> RecordedSearcher:
        """The section ``searcher`` of the configuration."""
        return RecordedSearcher.from_config(self.config)

    @property
    def script_call(self) -> int:
        """Number of the call of `core.init` in the script that created it, from 1."""
        return int((self.config.get("script_start") or {}).get("call", 1))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One start of a trial."""

    trial_id: int
    run_id: int
    started_at: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """A trial.

    Attributes:
        state: PAUSED until it is first started.
        trial_dir: Directory of the trial's files, or None.
        current_run: The newest run, or None.
        search_index: Index in the experiment's search, from 0, or None.
        length: Length that the search requests, in the unit of ``searcher.max_length``, or None.
        rung: Rung in a halving search, from 0, or None.
        num_restarts: Number of restarts after a crash.
        ended_at: Time when it last stopped running; None while its state is RUNNING.
        control: Request to end this trial only, or None.
        labels: Labels for searching, sorted.
        notes: Longer notes, or "".
        job: Id of the job in which a launcher runs the newest run, or None.
    """

    id: int
    experiment_id: int
    state: TrialState
    error: str | None
    hparams: Mapping[str, Any]
    seed: int
    trial_dir: str | None
    current_run: RunRecord | None = None
    num_restarts: int = 0
    created_at: datetime.datetime
    ended_at: datetime.datetime | None
    search_index: int | None = None
    length: int | None = None
    rung: int | None = None
    control: Control | None = None
    labels: Sequence[str] = ()
    notes: str = ""
    job: str | None = None

    @property
    def run_id(self) -> int:
        """Number of the newest run; 0 if the trial was never started."""
        return self.current_run.run_id if self.current_run else 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricRecord:
    """A report of metrics.

    Attributes:
        kind: "training" or "validation".
        metrics: Values by name; NaN and the infinities are floats.
        batch_metrics: Values of each batch since the last report, oldest first, or None.
        n_records: Number of records that the metrics cover, over all workers, or None.
        reported_at: Time of the report; None means the time of `Database.add_metrics`.
        seq: Number in the run's event log, or None.
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
    """A record of an event log other than metrics, such as progress.

    An event of kind "damaged" replaces a line with a wrong checksum.
    """

    trial_id: int
    run_id: int
    seq: int | None
    kind: str
    payload: Mapping[str, Any]
    reported_at: datetime.datetime


def list_resumes(events: Iterable[EventRecord]) -> list[ResumeComparison]:
    """Return the comparisons in a trial's events of kind "resume_compared"."""
    from detcore.data import ResumeComparison

    return [ResumeComparison.from_fields(event.payload) for event in events]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint.

    Attributes:
        state: ACTIVE (being written), COMPLETED, DAMAGED, PARTIALLY_DELETED, DELETING or
            DELETED.
        metadata: Metadata saved with the checkpoint or added by users.
        resources: File sizes in bytes by file name.
    """

    uuid: str
    experiment_id: int
    trial_id: int
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
        """Total size of the files."""
        return sum(self.resources.values())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """A model.

    Attributes:
        name: Unique name.
        metadata: Custom metadata; JSON values.
        archived: Whether it is archived. An archived model cannot be changed.
        num_versions: Number of versions.
        updated_at: Time of the last change of the model or of a version.
    """

    id: int
    name: str
    description: str
    metadata: Mapping[str, Any]
    labels: Sequence[str]
    archived: bool
    num_versions: int
    created_at: datetime.datetime
    updated_at: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersionRecord:
    """A checkpoint in the registry.

    Attributes:
        model_id: The model.
        number: Version number within the model, from 1, never reused.
        checkpoint_uuid: The checkpoint.
        name: Name of the version, or "".
        comment: One-line description, or "".
        notes: Longer notes, or "".
        metadata: Custom metadata; JSON values.
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


@dataclasses.dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a worker printed.

    Attributes:
        at: Time in seconds since 1970 (UTC).
        run: Number of the trial's run, from 1.
        rank: Rank of the worker.
        stream: "stdout", "stderr", or "detcore" for messages of the runner.
        text: The line without its end.
    """

    at: float
    run: int
    rank: int
    stream: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ObserverCursor:
    """Position up to which a plugin received the events of a run.

    Attributes:
        byte_offset: Offset in the event log after the last delivered event.
        trying: Later events up to this number may have been delivered, too; 0 = none.
        is_finished: Whether the plugin received all events of the run.
    """

    experiment_id: int
    trial_id: int
    run_id: int
    plugin: str
    byte_offset: int
    trying: int
    is_finished: bool


def read_rows(record: Callable[..., _T], rows: Iterable[Row[Any]]) -> list[_T]:
    """Return the rows of a query as records.

    Args:
        record: Class of the records.
        rows: The rows. Columns without a field are ignored. Fields without a column have their
            default.
    """
    names = {field.name for field in dataclasses.fields(record)}  # type: ignore[arg-type]
    return [
        record(**{name: value for name, value in row._mapping.items() if name in names})
        for row in rows
    ]
