"""The tables: a column for each field of a record, and those that records do not show.

A change here, or of a record, needs a migration. The migrations also make the tables ``users``,
``tokens`` and ``submissions``, which belong to the server now (`detcore_server`): earlier releases
of detcore expect them in every database.

Times are seconds since 1970 (UTC). JSON is kept as text that `detcore._log.lines` reads, so
that every database holds the same bytes and NaN survives.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    desc,
)
from sqlalchemy.types import TypeEngine

from detcore._records import (
    CheckpointRecord,
    EventRecord,
    ExperimentRecord,
    Field,
    Kept,
    MetricRecord,
    ModelRecord,
    ModelVersionRecord,
    ProcessIdentity,
    RunRecord,
    TrialRecord,
    fields_of,
)
from detcore.database._home import HomePath
from detcore.database._text import PlainText

__all__ = [
    "checkpoints",
    "events",
    "experiment_labels",
    "experiments",
    "last_ids",
    "metadata",
    "metrics",
    "model_versions",
    "models",
    "runs",
    "search_events",
    "spools",
    "trials",
    "validation_values",
]

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_TYPES: dict[type, TypeEngine[Any]] = {
    bool: Boolean(),
    int: Integer(),
    float: Float(53),
    datetime.datetime: Float(53),
    str: PlainText(),
    ProcessIdentity: Text(),
}
_KEPT: dict[Kept, TypeEngine[Any]] = {Kept.AS_LARGE: BigInteger(), Kept.AS_PATH: HomePath()}


def _columns(record: Callable[..., object], *given: Column[Any]) -> Iterator[Column[Any]]:
    """Yield the columns of a record's table.

    A field that is optional or has a default may be NULL; see `detcore._records.read_row`.

    Args:
        record: The record's class.
        given: Columns that are not fields, or that are more than the type of their field says.
    """
    yield from given
    names = {column.name for column in given}
    for name, field in fields_of(record).items():
        kind = _type_of(field)
        if kind is not None and name not in names:
            is_nullable = field.is_optional or field.default is not None
            yield Column(name, kind, nullable=is_nullable)


def _type_of(field: Field) -> TypeEngine[Any] | None:
    """Return the type of a field's column; None if the field is no column."""
    if field.json is not None:
        return Text()
    if field.kept is not None:
        return _KEPT.get(field.kept)
    return String(16) if issubclass(field.type, enum.Enum) else _TYPES.get(field.type)


experiments = Table(
    "experiments",
    metadata,
    *_columns(
        ExperimentRecord,
        Column("id", Integer, primary_key=True),
        Column("archived", Boolean, nullable=False),
    ),
)

# The highest id that a table had when rows were deleted from it. Ids are not given again, because
# folders, scripts and objects of clients name them, but SQLite would.
last_ids = Table(
    "last_ids",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("last_id", BigInteger, nullable=False),
)

# The labels of each experiment's configuration once more, to find it by.
experiment_labels = Table(
    "experiment_labels",
    metadata,
    Column("label", PlainText, primary_key=True),
    Column("experiment_id", ForeignKey("experiments.id"), primary_key=True, autoincrement=False),
)

trials = Table(
    "trials",
    metadata,
    *_columns(
        TrialRecord,
        Column("id", Integer, primary_key=True),
        Column("experiment_id", ForeignKey("experiments.id"), nullable=False, index=True),
        Column("num_restarts", Integer, nullable=False),
    ),
    # An index rather than a constraint: SQLite adds the one without copying the table.
    Index(None, "experiment_id", "search_index", unique=True),
    # A runner looks for requests about twice a second, among perhaps 100,000 trials.
    Index(None, "experiment_id", "control"),
)

# The events of each search, in order: its whole state; see `detcore.search`.
search_events = Table(
    "search_events",
    metadata,
    Column("experiment_id", ForeignKey("experiments.id"), primary_key=True),
    # From 0, which is the search's beginning and has no event.
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("event", Text),
    Column("created_at", Float(53), nullable=False),
)

runs = Table(
    "runs",
    metadata,
    *_columns(
        RunRecord,
        Column("trial_id", ForeignKey("trials.id"), primary_key=True),
        Column("run_id", Integer, primary_key=True, autoincrement=False),
    ),
)

metrics = Table(
    "metrics",
    metadata,
    *_columns(
        MetricRecord,
        Column("id", Integer, primary_key=True),
        Column("trial_id", ForeignKey("trials.id"), nullable=False),
        Column("kind", String(16), nullable=False),
        Column("reported_at", Float(53), nullable=False),
    ),
    UniqueConstraint("trial_id", "run_id", "seq"),
    Index(None, "trial_id", "kind", "steps_completed", "run_id"),
)

# The numbers of validations once more, one per row, so that the best is an index look-up: in the
# order of an index, and of equal values that of the earlier trial first.
validation_values = Table(
    "validation_values",
    metadata,
    Column("metric_id", ForeignKey("metrics.id"), primary_key=True, autoincrement=False),
    Column("name", PlainText, primary_key=True),
    Column("experiment_id", Integer, nullable=False),
    Column("trial_id", Integer, nullable=False),
    Column("value", Float(53), nullable=False),
    Index(None, "experiment_id", "name", "value", "trial_id"),
    Index(
        "ix_validation_values_largest",
        "experiment_id",
        "name",
        desc("value"),
        "trial_id",
    ),
    Index(None, "trial_id", "name", "value"),
)

events = Table(
    "events",
    metadata,
    *_columns(
        EventRecord,
        Column("id", Integer, primary_key=True),
        Column("trial_id", ForeignKey("trials.id"), nullable=False),
    ),
    Index(None, "trial_id", "kind"),
)

# How far each spool has been taken in; moved in the transaction that adds its records.
spools = Table(
    "spools",
    metadata,
    Column("trial_id", ForeignKey("trials.id"), primary_key=True),
    Column("run_id", Integer, primary_key=True, autoincrement=False),
    Column("byte_offset", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    *_columns(
        CheckpointRecord,
        Column("uuid", String(64), primary_key=True),
        Column("trial_id", ForeignKey("trials.id"), nullable=False),
        Column("experiment_id", ForeignKey("experiments.id"), nullable=False),
        Column("state", String(20), nullable=False),
    ),
    Index(None, "trial_id", "steps_completed"),
    Index(None, "experiment_id", "trial_id", "steps_completed"),
)

models = Table(
    "models",
    metadata,
    *_columns(
        ModelRecord,
        Column("id", Integer, primary_key=True),
        # The number that the newest version got; numbers of deleted versions are not given again.
        Column("last_number", Integer, nullable=False),
    ),
    UniqueConstraint("name"),
)

model_versions = Table(
    "model_versions",
    metadata,
    *_columns(
        ModelVersionRecord,
        Column("model_id", ForeignKey("models.id"), primary_key=True),
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("checkpoint_uuid", ForeignKey("checkpoints.uuid"), nullable=False, index=True),
    ),
)
