"""Create the first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "users",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("password_hash", sa.Text),
        sa.Column("is_admin", sa.Boolean, nullable=False),
        sa.Column("is_active", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("name", name="uq_users_name"),
    )
    _create_tokens()
    _create_submissions()


def _create_tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("user_id", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("expires_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_tokens"),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_tokens_user_id"),
    )
    op.create_index("ix_tokens_user_id", "tokens", ["user_id"])
    op.create_index("ix_tokens_expires_at", "tokens", ["expires_at"])


def _create_submissions() -> None:
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
