"""The tables. A column has the name of the record field that it stores.

Once 0.1.0 is published, a change here needs a file in ``migrations/versions``. Until then, delete
the database.
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
)

from detcore.contract.values import Control, ExperimentState, TrialState
from detcore.records.column_types import (
    DOCUMENT,
    METRICS,
    TIME,
    HomePath,
    PlainText,
    make_enum_type,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# Ids of experiments, trials and models are never reused (`sqlite_autoincrement`), because
# directories, scripts and client objects refer to them.
experiments = Table(
    "experiments",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", PlainText, nullable=False),
    Column("state", make_enum_type(ExperimentState), nullable=False),
    Column("error", PlainText),
    Column("config", DOCUMENT, nullable=False),
    Column("config_text", PlainText),
    Column("model_dir", HomePath, nullable=False),
    Column("script_start", PlainText),
    Column("archived", Boolean, nullable=False),
    Column("progress", Float(53)),
    Column("created_at", TIME, nullable=False),
    Column("ended_at", TIME),
    Column("control", make_enum_type(Control)),
    Column("notes", PlainText, nullable=False),
    sqlite_autoincrement=True,
)

# Index of the labels in the configuration of each experiment.
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
    Column("state", make_enum_type(TrialState), nullable=False),
    Column("error", PlainText),
    Column("hparams", DOCUMENT, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("trial_dir", HomePath),
    Column("num_restarts", Integer, nullable=False),
    Column("created_at", TIME, nullable=False),
    Column("ended_at", TIME),
    Column("search_index", Integer),
    Column("length", BigInteger),
    Column("rung", Integer),
    Column("control", make_enum_type(Control)),
    Column("labels", DOCUMENT, nullable=False),
    Column("notes", PlainText, nullable=False),
    Column("job", PlainText),
    # An index instead of a constraint, because SQLite can add an index without copying the table.
    Index(None, "experiment_id", "search_index", unique=True),
    # A runner looks for requests about twice per second, possibly among 100,000 trials.
    Index(None, "experiment_id", "control"),
    sqlite_autoincrement=True,
)

# Events of each search in order. They are the complete state of a search; see `detcore.search`.
search_events = Table(
    "search_events",
    metadata,
    Column("experiment_id", ForeignKey("experiments.id"), primary_key=True),
    # Starts at 0, which marks the start of the search and has no event.
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("event", DOCUMENT),
    Column("created_at", TIME, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("trial_id", ForeignKey("trials.id"), primary_key=True),
    Column("run_id", Integer, primary_key=True, autoincrement=False),
    Column("started_at", TIME, nullable=False),
)

metrics = Table(
    "metrics",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("trial_id", ForeignKey("trials.id"), nullable=False),
    Column("run_id", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("steps_completed", BigInteger, nullable=False),
    Column("metrics", METRICS, nullable=False),
    Column("batch_metrics", METRICS),
    Column("n_records", BigInteger),
    Column("reported_at", TIME, nullable=False),
    Column("seq", BigInteger),
    UniqueConstraint("trial_id", "run_id", "seq"),
    Index(None, "trial_id", "kind", "steps_completed", "run_id"),
)

# One row per validation metric, so that the best value is an index look-up. Among equal values, the
# index puts the earlier trial first.
validation_values = Table(
    "validation_values",
    metadata,
    Column("metric_id", ForeignKey("metrics.id"), primary_key=True, autoincrement=False),
    Column("name", PlainText, primary_key=True),
    Column("experiment_id", Integer, nullable=False),
    Column("trial_id", Integer, nullable=False),
    Column("value", Float(53), nullable=False),
    Index(None, "experiment_id", "name", "value", "trial_id"),
    Index(None, "trial_id", "name", "value"),
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("trial_id", ForeignKey("trials.id"), nullable=False),
    Column("run_id", Integer, nullable=False),
    Column("seq", BigInteger),
    Column("kind", PlainText, nullable=False),
    Column("payload", METRICS, nullable=False),
    Column("reported_at", TIME, nullable=False),
    Index(None, "trial_id", "kind"),
)

# Ingested part of each log. The transaction that adds records of a log also updates its row.
event_logs = Table(
    "event_logs",
    metadata,
    Column("trial_id", ForeignKey("trials.id"), primary_key=True),
    Column("run_id", Integer, primary_key=True, autoincrement=False),
    Column("byte_offset", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
)

# Delivered events of each run and observer. Rows are added when the run starts.
cursors = Table(
    "cursors",
    metadata,
    Column("trial_id", ForeignKey("trials.id"), primary_key=True),
    Column("run_id", Integer, primary_key=True, autoincrement=False),
    Column("plugin", PlainText, primary_key=True),
    Column("byte_offset", BigInteger, nullable=False),
    Column("trying", BigInteger, nullable=False),
    Column("is_finished", Boolean, nullable=False),
    # Observers look for unfinished runs every two seconds.
    Index(None, "is_finished", "trial_id"),
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
    Column("metadata", DOCUMENT, nullable=False),
    Column("resources", DOCUMENT, nullable=False),
    Column("started_at", TIME, nullable=False),
    Column("committed_at", TIME),
    Column("deleted_at", TIME),
    Index(None, "trial_id", "steps_completed"),
    Index(None, "experiment_id", "trial_id", "steps_completed"),
)

models = Table(
    "models",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", PlainText, nullable=False),
    Column("description", PlainText, nullable=False),
    Column("metadata", DOCUMENT, nullable=False),
    Column("labels", DOCUMENT, nullable=False),
    Column("archived", Boolean, nullable=False),
    Column("created_at", TIME, nullable=False),
    Column("updated_at", TIME, nullable=False),
    # Number of the newest version. Numbers of deleted versions are never reused.
    Column("last_number", Integer, nullable=False),
    UniqueConstraint("name"),
    sqlite_autoincrement=True,
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
    Column("metadata", DOCUMENT, nullable=False),
    Column("created_at", TIME, nullable=False),
    Column("updated_at", TIME, nullable=False),
)

# The users of a server.
users = Table(
    "users",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", PlainText, nullable=False),
    # Hash of the password, or NULL if the user cannot log in.
    Column("password_hash", Text),
    Column("is_admin", Boolean, nullable=False),
    Column("is_active", Boolean, nullable=False),
    Column("created_at", Float(53), nullable=False),
    UniqueConstraint("name"),
)

# Tokens that authenticate users. Only the SHA-256 of each token is stored.
tokens = Table(
    "tokens",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("user_id", ForeignKey("users.id"), nullable=False, index=True),
    Column("created_at", Float(53), nullable=False),
    Column("expires_at", Float(53), nullable=False, index=True),
)

# User of each submitted experiment, and whether the server has started it.
submissions = Table(
    "submissions",
    metadata,
    Column("experiment_id", ForeignKey("experiments.id"), primary_key=True, autoincrement=False),
    Column("user_id", ForeignKey("users.id"), nullable=False),
    # Created by the client, so that the server recognizes a repeated submission.
    Column("submission_id", String(64), nullable=False),
    # "QUEUED", "STARTED" or "ENDED".
    Column("phase", String(16), nullable=False, index=True),
    Column("test_mode", Boolean, nullable=False),
    Column("created_at", Float(53), nullable=False),
    UniqueConstraint("user_id", "submission_id"),
)
