"""Add submissions of experiments to a server."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "submissions",
        sa.Column("experiment_id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("user_id", sa.Integer, nullable=False),
        sa.Column("submission_id", sa.String(64), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("test_mode", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("experiment_id", name="pk_submissions"),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_submissions_experiment_id"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_submissions_user_id"),
        sa.UniqueConstraint(
            "user_id", "submission_id", name="uq_submissions_user_id_submission_id"
        ),
    )
    op.create_index("ix_submissions_phase", "submissions", ["phase"])
