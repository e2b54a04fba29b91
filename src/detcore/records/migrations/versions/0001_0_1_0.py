"""The tables of 0.1.0, which `detcore.records.engine` creates from `detcore.records.schema`.

A later version changes them here, in a new file.
"""

from __future__ import annotations

revision = "0001_0_1_0"
down_revision = None


def upgrade() -> None:
    """Do nothing: a new database is created whole."""
