"""Add searches of several trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and the table."""
    with op.batch_alter_table("experiments") as table:
        table.add_column(sa.Column("control", sa.String(16)))
        table.add_column(sa.Column("progress", sa.Float(53)))
        table.add_column(
            sa.Column("archived", sa.Boolean, nullable=False, server_default=sa.false())
        )
    with op.batch_alter_table("trials") as table:
        table.add_column(sa.Column("search_index", sa.Integer))
        table.add_column(sa.Column("length", sa.BigInteger))
        table.add_column(sa.Column("rung", sa.Integer))
        table.add_column(sa.Column("num_restarts", sa.Integer, nullable=False, server_default="0"))
        table.create_unique_constraint(
            "uq_trials_experiment_id_search_index", ["experiment_id", "search_index"]
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
