"""Keep over how many records metrics are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column."""
    op.add_column("metrics", sa.Column("n_records", sa.BigInteger))
