"""Create the tables of 0.1.0 from `detcore_server._tables`.

The first later migration that changes them writes them out here as they are before it.
"""

from __future__ import annotations

from alembic import op

from detcore_server._tables import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    metadata.create_all(op.get_bind())
