"""The tables: a column for each field of a record, and those that records do not show.

From 0.1.0 on, a change here or of a record needs a migration.

Times are seconds since 1970 (UTC). JSON is kept as text that `detcore._log.lines` reads, so
that every database holds the same bytes and NaN survives.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from detcore import _records as records
from detcore.contract.values import Control, ExperimentState, TrialState
from detcore.database._text import HomePath, PlainText

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
# By the type of a field, or its mark.
_TYPES: dict[object, TypeEngine[Any]] = {
    bool: sa.Boolean(),
    int: sa.Integer(),
    float: sa.Float(53),
    datetime.datetime: sa.Float(53),
    str: PlainText(),
    records.ProcessIdentity: sa.Text(),
    records.Json: sa.Text(),
    records.Kept.AS_LARGE: sa.BigInteger(),
    records.Kept.AS_PATH: HomePath(),
    **dict.fromkeys((Control, ExperimentState, TrialState), sa.String(16)),
}


def _columns(record: Callable[..., object], *given: sa.Column[Any]) -> Iterator[sa.Column[Any]]:
    """Yield the columns of a record's table.

    A field that is optional or has a default may be NULL; see `detcore._records.read_rows`.

    Args:
        record: The record's class.
        given: Columns that are not fields, or that are more than the type of their field says.
    """
    yield from given
    names = {column.name for column in given}
    for name, field in records.fields_of(record).items():
        kind = records.Json if field.json is not None else field.kept or field.type
        if kind in _TYPES and name not in names:
            is_nullable = field.is_optional or field.default is not None
            yield sa.Column(name, _TYPES[kind], nullable=is_nullable)


experiments = sa.Table(
    "experiments",
    metadata,
    *_columns(
        records.ExperimentRecord,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("archived", sa.Boolean, nullable=False),
    ),
)

# The highest id that a table had when rows were deleted from it. Ids are not given again, because
# folders, scripts and objects of clients name them, but SQLite would.
last_ids = sa.Table(
    "last_ids",
    metadata,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("last_id", sa.BigInteger, nullable=False),
)

# The labels of each experiment's configuration once more, to find it by.
experiment_labels = sa.Table(
    "experiment_labels",
    metadata,
    sa.Column("label", PlainText, primary_key=True),
    sa.Column(
        "experiment_id", sa.ForeignKey("experiments.id"), primary_key=True, autoincrement=False
    ),
)

trials = sa.Table(
    "trials",
    metadata,
    *_columns(
        records.TrialRecord,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("experiment_id", sa.ForeignKey("experiments.id"), nullable=False, index=True),
        sa.Column("num_restarts", sa.Integer, nullable=False),
    ),
    # An index rather than a constraint: SQLite adds the one without copying the table.
    sa.Index(None, "experiment_id", "search_index", unique=True),
    # A runner looks for requests about twice a second, among perhaps 100,000 trials.
    sa.Index(None, "experiment_id", "control"),
)

# The events of each search, in order: its whole state; see `detcore.search`.
search_events = sa.Table(
    "search_events",
    metadata,
    sa.Column("experiment_id", sa.ForeignKey("experiments.id"), primary_key=True),
    # From 0, which is the search's beginning and has no event.
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("event", sa.Text),
    sa.Column("created_at", sa.Float(53), nullable=False),
)

runs = sa.Table(
    "runs",
    metadata,
    *_columns(
        records.RunRecord,
        sa.Column("trial_id", sa.ForeignKey("trials.id"), primary_key=True),
        sa.Column("run_id", sa.Integer, primary_key=True, autoincrement=False),
    ),
)

metrics = sa.Table(
    "metrics",
    metadata,
    *_columns(
        records.MetricRecord,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("trial_id", sa.ForeignKey("trials.id"), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("reported_at", sa.Float(53), nullable=False),
    ),
    sa.UniqueConstraint("trial_id", "run_id", "seq"),
    sa.Index(None, "trial_id", "kind", "steps_completed", "run_id"),
)

# The numbers of validations once more, one per row, so that the best is an index look-up: in the
# order of an index, and of equal values that of the earlier trial first.
validation_values = sa.Table(
    "validation_values",
    metadata,
    sa.Column("metric_id", sa.ForeignKey("metrics.id"), primary_key=True, autoincrement=False),
    sa.Column("name", PlainText, primary_key=True),
    sa.Column("experiment_id", sa.Integer, nullable=False),
    sa.Column("trial_id", sa.Integer, nullable=False),
    sa.Column("value", sa.Float(53), nullable=False),
    sa.Index(None, "experiment_id", "name", "value", "trial_id"),
    sa.Index(None, "trial_id", "name", "value"),
)

events = sa.Table(
    "events",
    metadata,
    *_columns(
        records.EventRecord,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("trial_id", sa.ForeignKey("trials.id"), nullable=False),
    ),
    sa.Index(None, "trial_id", "kind"),
)

# How far each spool has been taken in; moved in the transaction that adds its records.
spools = sa.Table(
    "spools",
    metadata,
    sa.Column("trial_id", sa.ForeignKey("trials.id"), primary_key=True),
    sa.Column("run_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("byte_offset", sa.BigInteger, nullable=False),
    sa.Column("last_seq", sa.BigInteger, nullable=False),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    *_columns(
        records.CheckpointRecord,
        sa.Column("uuid", sa.String(64), primary_key=True),
        sa.Column("trial_id", sa.ForeignKey("trials.id"), nullable=False),
        sa.Column("experiment_id", sa.ForeignKey("experiments.id"), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
    ),
    sa.Index(None, "trial_id", "steps_completed"),
    sa.Index(None, "experiment_id", "trial_id", "steps_completed"),
)

models = sa.Table(
    "models",
    metadata,
    *_columns(
        records.ModelRecord,
        sa.Column("id", sa.Integer, primary_key=True),
        # The number that the newest version got; numbers of deleted versions are not given again.
        sa.Column("last_number", sa.Integer, nullable=False),
    ),
    sa.UniqueConstraint("name"),
)

model_versions = sa.Table(
    "model_versions",
    metadata,
    *_columns(
        records.ModelVersionRecord,
        sa.Column("model_id", sa.ForeignKey("models.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("checkpoint_uuid", sa.ForeignKey("checkpoints.uuid"), nullable=False, index=True),
    ),
)
