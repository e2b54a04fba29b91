"""Add labels and notes of trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("trials", sa.Column("labels", sa.Text))
    op.add_column("trials", sa.Column("notes", sa.Text))
