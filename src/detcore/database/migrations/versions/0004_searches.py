"""Add searches of several trials, labels to find experiments by, and indices for the best.

Nothing here copies a table: columns and indices are added in place.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_AT_ONCE = 500
_MAX_INDEXED = 512


def upgrade() -> None:
    """Add columns, tables and indices."""
    op.add_column("experiments", sa.Column("control", sa.String(16)))
    op.add_column("experiments", sa.Column("progress", sa.Float(53)))
    op.add_column(
        "experiments",
        sa.Column("archived", sa.Boolean, nullable=False, server_default=sa.false()),
    )
    op.add_column("trials", sa.Column("search_index", sa.Integer))
    op.add_column("trials", sa.Column("length", sa.BigInteger))
    op.add_column("trials", sa.Column("rung", sa.Integer))
    op.add_column(
        "trials", sa.Column("num_restarts", sa.Integer, nullable=False, server_default="0")
    )
    op.create_index(
        "ix_trials_experiment_id_search_index",
        "trials",
        ["experiment_id", "search_index"],
        unique=True,
    )
    op.create_table(
        "search_events",
        sa.Column("experiment_id", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("event", sa.Text),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("experiment_id", "number", name="pk_search_events"),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_search_events_experiment_id"
        ),
    )
    op.create_table(
        "last_ids",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("last_id", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_last_ids"),
    )
    _labels()
    _indices()


def _labels() -> None:
    labels = op.create_table(
        "experiment_labels",
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("experiment_id", sa.Integer, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("label", "experiment_id", name="pk_experiment_labels"),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_experiment_labels_experiment_id"
        ),
    )
    connection = op.get_bind()
    rows = connection.execute(sa.text("SELECT id, config FROM experiments")).fetchall()
    found = [
        {"label": label, "experiment_id": row.id} for row in rows for label in _texts(row.config)
    ]
    for start in range(0, len(found), _AT_ONCE):
        connection.execute(labels.insert(), found[start : start + _AT_ONCE])


def _texts(config: str) -> set[str]:
    """Return the labels of a recorded configuration, whatever a release of long ago put there."""
    document = json.loads(config)
    labels = document.get("labels") if isinstance(document, dict) else None
    if not isinstance(labels, list):
        return set()
    return {
        label.replace("\0", "\ufffd").encode("utf-8", "replace").decode()[:_MAX_INDEXED]
        for label in labels
        if isinstance(label, str)
    }


def _indices() -> None:
    # Of equal values the earlier trial comes first, whatever the direction.
    op.drop_index("ix_validation_values_experiment_id_name_value", "validation_values")
    op.create_index(
        "ix_validation_values_experiment_id_name_value_trial_id",
        "validation_values",
        ["experiment_id", "name", "value", "trial_id"],
    )
    op.create_index(
        "ix_validation_values_largest",
        "validation_values",
        ["experiment_id", "name", sa.text("value DESC"), "trial_id"],
    )
    for owners in (["trial_id"], ["experiment_id", "trial_id"]):
        op.drop_index(f"ix_checkpoints_{owners[0]}", "checkpoints")
        name = "_".join([*owners, "steps_completed"])
        op.create_index(f"ix_checkpoints_{name}", "checkpoints", [*owners, "steps_completed"])
