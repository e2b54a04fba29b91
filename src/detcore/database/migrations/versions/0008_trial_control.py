"""Add requests to the runner of a search about one of its trials.

Earlier releases would continue a trial that was canceled.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the column and its index."""
    op.add_column("trials", sa.Column("control", sa.String(16)))
    op.create_index("ix_trials_experiment_id_control", "trials", ["experiment_id", "control"])
