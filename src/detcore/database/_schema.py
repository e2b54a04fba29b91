"""The tables. A change here needs a migration, and its name in `REVISIONS`.

The migrations also make the tables ``users``, ``tokens`` and ``submissions``, which belong to the
server now (`detcore_server`): earlier releases of detcore expect them in every database.

Times are seconds since 1970 (UTC). JSON is kept as text that `detcore._log.lines` reads, so
that every database holds the same bytes and NaN survives.
"""

from __future__ import annotations

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

from detcore.database._home import HomePath
from detcore.database._text import PlainText

__all__ = [
    "REVISIONS",
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

# Schema versions that this code can migrate, oldest first; it works with the last one.
REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009")

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

experiments = Table(
    "experiments",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", PlainText, nullable=False),
    Column("state", String(16), nullable=False),
    Column("error", PlainText),
    Column("config", Text, nullable=False),
    Column("config_text", PlainText),
    Column("model_dir", HomePath, nullable=False),
    # The process that set the state RUNNING last; see detcore.database._process.
    Column("process", Text),
    # The request of another process to the runner: a `Control`.
    Column("control", String(16)),
    # How much of the search is done, 0 to 1.
    Column("progress", Float(53)),
    Column("archived", Boolean, nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("ended_at", Float(53)),
    Column("notes", PlainText),
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
    Column("id", Integer, primary_key=True),
    Column("experiment_id", ForeignKey("experiments.id"), nullable=False, index=True),
    Column("state", String(16), nullable=False),
    Column("error", PlainText),
    Column("hparams", Text, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("trial_dir", HomePath),
    # Its number in the experiment's search, from 0.
    Column("search_index", Integer),
    # How far the search wants it trained, in the unit of searcher.max_length, and on which rung.
    Column("length", BigInteger),
    Column("rung", Integer),
    Column("num_restarts", Integer, nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("ended_at", Float(53)),
    # The request to the runner; it stays, because a search never continues such a trial.
    Column("control", String(16)),
    # A JSON list, and a longer text.
    Column("labels", Text),
    Column("notes", PlainText),
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

# Each start of a trial.
runs = Table(
    "runs",
    metadata,
    Column("trial_id", ForeignKey("trials.id"), primary_key=True),
    Column("run_id", Integer, primary_key=True, autoincrement=False),
    Column("process", Text, nullable=False),
    Column("started_at", Float(53), nullable=False),
)

metrics = Table(
    "metrics",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("trial_id", ForeignKey("trials.id"), nullable=False),
    Column("run_id", Integer, nullable=False),
    # Number of the record in the run's spool, from 1; NULL for one written without a spool.
    Column("seq", BigInteger),
    Column("kind", String(16), nullable=False),
    Column("steps_completed", BigInteger, nullable=False),
    Column("metrics", Text, nullable=False),
    Column("batch_metrics", Text),
    Column("n_records", BigInteger),
    Column("reported_at", Float(53), nullable=False),
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

# Records of a spool other than metrics: progress, status, and damaged lines.
events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("trial_id", ForeignKey("trials.id"), nullable=False),
    Column("run_id", Integer, nullable=False),
    Column("seq", BigInteger),
    Column("kind", PlainText, nullable=False),
    Column("payload", Text, nullable=False),
    Column("reported_at", Float(53), nullable=False),
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
    Column("uuid", String(64), primary_key=True),
    Column("trial_id", ForeignKey("trials.id"), nullable=False),
    Column("experiment_id", ForeignKey("experiments.id"), nullable=False),
    Column("storage_url", HomePath, nullable=False),
    Column("state", String(20), nullable=False),
    Column("steps_completed", BigInteger, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("resources", Text, nullable=False),
    Column("started_at", Float(53), nullable=False),
    Column("committed_at", Float(53)),
    Column("deleted_at", Float(53)),
    Index(None, "trial_id", "steps_completed"),
    Index(None, "experiment_id", "trial_id", "steps_completed"),
)

# The model registry.
models = Table(
    "models",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", PlainText, nullable=False),
    Column("description", PlainText, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("labels", Text, nullable=False),
    Column("archived", Boolean, nullable=False),
    # The number that the newest version got; numbers of deleted versions are not given again.
    Column("last_number", Integer, nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("updated_at", Float(53), nullable=False),
    UniqueConstraint("name"),
)

model_versions = Table(
    "model_versions",
    metadata,
    Column("model_id", ForeignKey("models.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("checkpoint_uuid", ForeignKey("checkpoints.uuid"), nullable=False, index=True),
    Column("name", PlainText, nullable=False),
    Column("comment", PlainText, nullable=False),
    Column("notes", PlainText, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("updated_at", Float(53), nullable=False),
)
