"""The records: each described once, for the database, the client, the server and the commands.

A field is a column of the record's table (`detcore.database._schema`). Those that are `Sent` are
part of the record's document, the JSON with which a server answers. `read_rows` makes records of
rows, `make_document` a document of a record, and `DOCUMENTS` lists the contents of each document.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from detcore._log import decode_document, decode_metrics, is_batches
from detcore.contract.errors import DatabaseError, InvalidArgumentError
from detcore.contract.values import Control, ExperimentState, TrialState

if TYPE_CHECKING:
    from sqlalchemy import Row

_T = TypeVar("_T")
_SENT = object()
Sent: TypeAlias = Annotated[_T, _SENT]


class Kept(enum.Enum):
    """Marks a field whose column is not that of its type alone."""

    AS_LARGE = "a number of 64 bits"
    AS_PATH = "a path or URL, which moves with the home"
    ELSEWHERE = "not a column of the record's table"


Large: TypeAlias = Annotated[int, Kept.AS_LARGE]
HomePath: TypeAlias = Annotated[str, Kept.AS_PATH]


@dataclasses.dataclass(frozen=True, slots=True)
class Json:
    """Marks a field that its column keeps as JSON text.

    Attributes:
        decode: Makes the value of the text.
        holds: "document" or "metrics", whose numbers that JSON does not have are spelled in
            different ways; None: it holds no such numbers.
    """

    decode: Callable[[str], Any]
    holds: str | None = None


def _decode_texts(text: str) -> tuple[str, ...]:
    return tuple(decode_document(text))


def _decode_batches(text: str) -> object:
    """Return the metrics of batches; None for what releases took in that did not look at them."""
    value = decode_metrics(text)
    return value if is_batches(value) else None


Document: TypeAlias = Annotated[Mapping[str, Any], Json(decode_document, "document")]
Metrics: TypeAlias = Annotated[Mapping[str, Any], Json(decode_metrics, "metrics")]
Batches: TypeAlias = Annotated[Sequence[Mapping[str, Any]], Json(_decode_batches, "metrics")]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A process, named so that a later one with the same number is not taken for it.

    Attributes:
        host: Host name.
        pid: Process number.
        machine_id: Names the machine (a digest of the system's machine id), or None.
        boot_id: Changes with every start of the machine; None where the system does not tell.
        started: When the process started, as the system counts it, or None.
        pid_namespace: Where `pid` counts (containers of one machine differ), or None.
    """

    host: str
    pid: int
    machine_id: str | None
    boot_id: str | None
    started: str | None
    pid_namespace: str | None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> ProcessIdentity:
        """Read a document, perhaps of another release; fields that it lacks are None."""
        values: dict[str, Any] = {name: document.get(name) for name in cls.__slots__}
        return cls(**values)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRecord:
    """An experiment.

    Attributes:
        config: The configuration, defaults applied.
        config_text: The experiment file as it was written, or None.
        process: The process that runs it, or ran it last, or None. A script that has ended as its
            author intended has none.
        control: The request to its runner, or None.
        progress: How much of its search is done, 0 to 1, or None.
        archived: Whether lists leave it out.
        notes: A longer text about it, or "".
        ended_at: When it last stopped running; None while its state is RUNNING.
    """

    id: Sent[int]
    name: Sent[str]
    state: Sent[ExperimentState]
    error: Sent[str | None]
    config: Sent[Document]
    config_text: str | None
    model_dir: HomePath
    process: ProcessIdentity | None
    archived: Sent[bool] = False
    progress: Sent[float | None] = None
    created_at: Sent[datetime.datetime]
    ended_at: Sent[datetime.datetime | None]
    control: Control | None = None
    notes: str = ""

    @property
    def script_call(self) -> int:
        """Which call of `core.init` in its script it belongs to, from 1."""
        return int((self.config.get("script_start") or {}).get("call", 1))


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
        labels: Words to find it by, sorted.
        notes: A longer text about it, or "".
    """

    id: Sent[int]
    experiment_id: Sent[int]
    state: Sent[TrialState]
    error: Sent[str | None]
    hparams: Sent[Document]
    seed: Large
    trial_dir: HomePath | None
    current_run: RunRecord | None
    num_restarts: Sent[int] = 0
    created_at: Sent[datetime.datetime]
    ended_at: Sent[datetime.datetime | None]
    search_index: int | None = None
    length: Large | None = None
    rung: int | None = None
    control: Control | None = None
    labels: Sent[Annotated[tuple[str, ...], Json(_decode_texts)]] = ()
    notes: Sent[str] = ""

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

    trial_id: Sent[int]
    run_id: Sent[int]
    kind: str
    steps_completed: Sent[Large]
    metrics: Sent[Metrics]
    batch_metrics: Sent[Batches | None] = None
    n_records: Sent[Large | None] = None
    reported_at: Sent[datetime.datetime | None] = None
    seq: Large | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """A record of a spool other than metrics, such as progress.

    An event of kind "damaged" stands for a line whose checksum was wrong.
    """

    trial_id: int
    run_id: int
    seq: Large | None
    kind: str
    payload: Metrics
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

    uuid: Sent[str]
    experiment_id: Sent[int]
    trial_id: Sent[int]
    storage_url: HomePath
    state: Sent[str]
    steps_completed: Sent[Large]
    metadata: Sent[Document]
    resources: Sent[
        Annotated[Mapping[str, int], Json(decode_document), "Sizes of its files in bytes."]
    ]
    started_at: Sent[datetime.datetime]
    committed_at: Sent[datetime.datetime | None]
    deleted_at: datetime.datetime | None

    @property
    def size_bytes(self) -> int:
        """Sum of its files."""
        return sum(self.resources.values())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """A model.

    Attributes:
        name: Unique.
        metadata: The user's own; JSON values.
        archived: Whether it is put away: shown, but not changed any more.
        num_versions: How many versions it has.
        updated_at: When it, or one of its versions, was changed last.
    """

    id: Sent[int]
    name: Sent[str]
    description: Sent[str]
    metadata: Sent[Document]
    labels: Sent[Annotated[tuple[str, ...], Json(_decode_texts)]]
    archived: Sent[bool]
    num_versions: Sent[Annotated[int, Kept.ELSEWHERE]]
    created_at: Sent[datetime.datetime]
    updated_at: Sent[datetime.datetime]


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

    model_id: Sent[int]
    number: Sent[int]
    checkpoint_uuid: str
    name: str
    comment: str
    notes: str
    metadata: Document
    created_at: Sent[datetime.datetime]
    updated_at: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a worker printed.

    Attributes:
        at: When, in seconds since 1970 (UTC).
        run: The trial's run, from 1.
        rank: The worker.
        stream: "stdout", "stderr", or "detcore" for messages of the runner about it.
        text: The line without its end.
    """

    at: Sent[Annotated[float, "When, in seconds since 1970."]]
    run: Sent[int]
    rank: Sent[int]
    stream: Sent[str]
    text: Sent[str]


# Documents that hold more than one record, or no record.


class ExperimentDocument(ExperimentRecord):
    """An experiment."""

    is_alive: Sent[Annotated[bool | None, "Whether its process is there; null: unknown."]]


class ListedTrialDocument(TrialRecord):
    """A trial in a list, with how far it came."""

    steps_completed: Sent[int]
    value: Sent[
        Annotated[
            float | None, Json(decode_metrics, "metrics"), "The best of the searcher's metric."
        ]
    ]
    value_steps: Sent[Annotated[int | None, "The step at which that was reached."]]
    latest_checkpoint: Sent[Annotated[str | None, "Its UUID."]]


class ReportDocument(MetricRecord):
    """A report of metrics."""

    reported_at: Sent[datetime.datetime]


class LogDocument:
    """A part of a log."""

    lines: Sent[list[LogLine]]
    position: Sent[Annotated[int, "Where the next part begins."]]
    is_over: Sent[Annotated[bool, "Whether nothing more will come."]]


class ValidationDocument:
    """A validation at the step of a checkpoint."""

    metrics: Sent[Metrics]
    n_records: Sent[int | None]


class CheckpointDocument(CheckpointRecord):
    """A checkpoint."""

    experiment_config: Sent[Document]
    hparams: Sent[Document]
    validation: Sent[ValidationDocument | None]


class RankedDocument(CheckpointDocument):
    """A checkpoint, with the value it is ranked by."""

    value: Sent[Annotated[float | None, Json(decode_metrics, "metrics")]]
    value_steps: Sent[int | None]


class TopDocument:
    """Checkpoints, the best first."""

    metric: Sent[str]
    smaller_is_better: Sent[bool]
    checkpoints: Sent[list[RankedDocument]]


class FileDocument:
    """A stored file."""

    name: Sent[Annotated[str, "Below the checkpoint, or below the trial's folder."]]
    size: Sent[int]


class FilesDocument:
    """The stored files of a checkpoint."""

    uuid: Sent[str]
    storage_url: Sent[str]
    files: Sent[list[FileDocument]]


class VersionDocument(ModelVersionRecord):
    """A version of a model."""

    model_name: Sent[str]
    checkpoint: Sent[CheckpointDocument]


DOCUMENTS: Mapping[str, type] = {
    "experiment": ExperimentDocument,
    "trial": TrialRecord,
    "listed": ListedTrialDocument,
    "report": ReportDocument,
    "line": LogLine,
    "log": LogDocument,
    "validation": ValidationDocument,
    "checkpoint": CheckpointDocument,
    "ranked": RankedDocument,
    "top": TopDocument,
    "file": FileDocument,
    "files": FilesDocument,
    "model": ModelRecord,
    "version": VersionDocument,
}


# Reading rows, and writing documents.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a record or of a document.

    Attributes:
        type: Its type, or that of its entries.
        document: The kind of document that it, or each of its entries, is; None: another value.
        is_optional: Whether it may be None.
        is_list: Whether it is a list.
        is_sent: Whether documents have it.
        json: How its column keeps it, if as JSON.
        kept: How its column keeps it, if not as others of its type.
        description: More about it, or None.
        default: Its value in documents of releases that did not have it yet; None: there were no
            such releases.
    """

    type: Any
    document: str | None
    is_optional: bool
    is_list: bool
    is_sent: bool
    json: Json | None
    kept: Kept | None
    description: str | None
    default: Any

    @property
    def holds(self) -> str | None:
        """Kind of numbers in it that JSON does not have; see `Json`."""
        return None if self.json is None else self.json.holds


@functools.cache
def fields_of(record: Callable[..., object]) -> Mapping[str, Field]:
    """Return the fields of a record's class, or of a document's, by name."""
    hints = typing.get_type_hints(record, include_extras=True)
    known = getattr(record, "__dataclass_fields__", {})
    given = {name: field.default for name, field in known.items()}
    defaults = {name: value for name, value in given.items() if value is not dataclasses.MISSING}
    return {name: _field_of(hint, defaults.get(name)) for name, hint in hints.items()}


def _field_of(hint: object, default: object) -> Field:
    marks: list[Any] = []
    is_optional = is_list = False
    while True:
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            hint, marks = args[0], [*marks, *args[1:]]
        elif origin in (typing.Union, types.UnionType):
            is_optional, hint = True, next(arg for arg in args if arg is not type(None))
        elif origin in (list, tuple, Sequence):
            is_list, hint = True, args[0]
        else:
            return Field(
                type=hint,
                document=next((kind for kind, it in DOCUMENTS.items() if it is hint), None),
                is_optional=is_optional,
                is_list=is_list,
                is_sent=_SENT in marks,
                json=next((mark for mark in marks if isinstance(mark, Json)), None),
                kept=next((mark for mark in marks if isinstance(mark, Kept)), None),
                description=next((mark for mark in marks if isinstance(mark, str)), None),
                default=[*default] if isinstance(default, tuple) else default,
            )


def document_of(kind: str) -> tuple[str, Mapping[str, Field]]:
    """Return a line about a kind of document, and the fields that such a document has by name.

    Args:
        kind: "experiment", "trial", "report", "checkpoint" and so on: a key of `DOCUMENTS`.
    """
    fields = fields_of(DOCUMENTS[kind])
    line = (DOCUMENTS[kind].__doc__ or "").partition("\n")[0]
    return line, {name: field for name, field in fields.items() if field.is_sent}


def experiment_state(value: ExperimentState | str) -> ExperimentState:
    """Return a state that is given by its name, too.

    Raises:
        InvalidArgumentError: If there is no such state.
    """
    try:
        return ExperimentState(value)
    except ValueError:
        known = ", ".join(each.value for each in ExperimentState)
        raise InvalidArgumentError(f"{value!r} is no state; expected one of {known}") from None


def read_rows(
    record: Callable[..., _T], rows: Iterable[Row[Any]], **more: Callable[[Row[Any]], object]
) -> list[_T]:
    """Return rows of one query as records.

    Args:
        record: The records' class.
        rows: The rows; a column that they lack gets the default of its field, as NULL does where
            the field may not be None.
        more: Functions of a row that return the fields which rows lack, by name.

    Raises:
        DatabaseError: If a value cannot be read: the database is damaged.
    """
    found: list[_T] = []
    columns: Sequence[tuple[int, str, bool, Callable[[Any], Any] | None]] | None = None
    for row in rows:
        if columns is None:
            columns = _readers(record, row._fields)
        values = {name: make(row) for name, make in more.items()} if more else {}
        try:
            for index, name, is_optional, convert in columns:
                value = row[index]
                if value is not None:
                    values[name] = value if convert is None else convert(value)
                elif is_optional:
                    values[name] = None
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise DatabaseError(
                f"the records are damaged: {name} is {str(value)[:80]!r}: {error}.\n"
                "No release writes that.\nPut a copy back: detcore database restore FILE"
            ) from error
        found.append(record(**values))
    return found


@functools.cache
def _readers(
    record: Callable[..., object], columns: tuple[str, ...]
) -> Sequence[tuple[int, str, bool, Callable[[Any], Any] | None]]:
    """Return the columns that are fields: index, name, whether None is a value, how it is read."""
    fields = fields_of(record)
    return [
        (index, name, fields[name].is_optional, _converter(fields[name]))
        for index, name in enumerate(columns)
        if name in fields
    ]


def _converter(field: Field) -> Callable[[Any], Any] | None:
    """Return what makes a field's value of its column's, or None where that is the value."""
    if field.json is not None:
        return field.json.decode
    if field.type is datetime.datetime:
        return functools.partial(datetime.datetime.fromtimestamp, tz=datetime.timezone.utc)
    if field.type is ProcessIdentity:
        return functools.lru_cache(
            lambda text: ProcessIdentity.from_document(decode_document(text))
        )
    if isinstance(field.type, type) and issubclass(field.type, enum.Enum | bool):
        return functools.cache(field.type)
    return None


def make_document(record: object, **more: object) -> dict[str, Any]:
    """Return the document of a record: JSON, but for numbers that JSON does not have.

    Args:
        record: The record.
        more: Fields of the document that the record lacks.
    """
    kind: type = type(record)
    names = [name for name, field in fields_of(kind).items() if field.is_sent]
    return {name: _plain(getattr(record, name)) for name in names} | more


def _plain(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
