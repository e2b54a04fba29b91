"""Create the first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    _experiments()
    _metrics()
    _spools()
    _checkpoints()


def _experiments() -> None:
    op.create_table(
        "experiments",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("config_text", sa.Text),
        sa.Column("model_dir", sa.Text, nullable=False),
        sa.Column("process", sa.Text),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("ended_at", sa.Float(53)),
        sa.PrimaryKeyConstraint("id", name="pk_experiments"),
    )
    op.create_table(
        "trials",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("experiment_id", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("hparams", sa.Text, nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("trial_dir", sa.Text),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("ended_at", sa.Float(53)),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_trials_experiment_id"
        ),
    )
    op.create_index("ix_trials_experiment_id", "trials", ["experiment_id"])
    op.create_table(
        "runs",
        sa.Column("trial_id", sa.Integer, nullable=False),
        sa.Column("run_id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("process", sa.Text, nullable=False),
        sa.Column("started_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("trial_id", "run_id", name="pk_runs"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_runs_trial_id"),
    )


def _metrics() -> None:
    op.create_table(
        "metrics",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("trial_id", sa.Integer, nullable=False),
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("seq", sa.BigInteger),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("steps_completed", sa.BigInteger, nullable=False),
        sa.Column("metrics", sa.Text, nullable=False),
        sa.Column("batch_metrics", sa.Text),
        sa.Column("reported_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_metrics"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_metrics_trial_id"),
        sa.UniqueConstraint("trial_id", "run_id", "seq", name="uq_metrics_trial_id_run_id_seq"),
    )
    op.create_index(
        "ix_metrics_trial_id_kind_steps_completed_run_id",
        "metrics",
        ["trial_id", "kind", "steps_completed", "run_id"],
    )
    op.create_table(
        "validation_values",
        sa.Column("metric_id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("experiment_id", sa.Integer, nullable=False),
        sa.Column("trial_id", sa.Integer, nullable=False),
        sa.Column("value", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("metric_id", "name", name="pk_validation_values"),
        sa.ForeignKeyConstraint(
            ["metric_id"], ["metrics.id"], name="fk_validation_values_metric_id"
        ),
    )
    for owner in ("experiment_id", "trial_id"):
        op.create_index(
            f"ix_validation_values_{owner}_name_value",
            "validation_values",
            [owner, "name", "value"],
        )


def _spools() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("trial_id", sa.Integer, nullable=False),
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("seq", sa.BigInteger),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("reported_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_events_trial_id"),
    )
    op.create_index("ix_events_trial_id_kind", "events", ["trial_id", "kind"])
    op.create_table(
        "spools",
        sa.Column("trial_id", sa.Integer, nullable=False),
        sa.Column("run_id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("byte_offset", sa.BigInteger, nullable=False),
        sa.Column("last_seq", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("trial_id", "run_id", name="pk_spools"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_spools_trial_id"),
    )


def _checkpoints() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("uuid", sa.String(64), nullable=False),
        sa.Column("trial_id", sa.Integer, nullable=False),
        sa.Column("experiment_id", sa.Integer, nullable=False),
        sa.Column("storage_url", sa.Text, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("steps_completed", sa.BigInteger, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("resources", sa.Text, nullable=False),
        sa.Column("started_at", sa.Float(53), nullable=False),
        sa.Column("committed_at", sa.Float(53)),
        sa.Column("deleted_at", sa.Float(53)),
        sa.PrimaryKeyConstraint("uuid", name="pk_checkpoints"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_checkpoints_trial_id"),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_checkpoints_experiment_id"
        ),
    )
    op.create_index("ix_checkpoints_trial_id", "checkpoints", ["trial_id"])
    op.create_index("ix_checkpoints_experiment_id", "checkpoints", ["experiment_id"])
