"""Add notes of experiments, and keep paths below the home relative to it.

Earlier releases would not find what the paths name.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy import bindparam, text

from detcore.database._home import PATH_PREFIX, URL_PREFIX, home_of

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_COLUMNS = (("experiments", "model_dir"), ("trials", "trial_dir"), ("checkpoints", "storage_url"))


def upgrade() -> None:
    """Add the column; rewrite the paths of an SQLite database, since others have no home."""
    op.add_column("experiments", sa.Column("notes", sa.Text))
    home = home_of(op.get_bind().dialect)
    if home is None:
        return
    for prefix, root in ((PATH_PREFIX, str(home)), (URL_PREFIX, home.as_uri())):
        below = f"{root.rstrip('/')}/"
        for table, column in _COLUMNS:
            statement = (
                f"UPDATE {table} SET {column} = :prefix || substr({column}, length(:below) + 1) "
                f"WHERE substr({column}, 1, length(:below)) = :below OR {column} = :root"
            )
            op.execute(
                text(statement).bindparams(
                    bindparam("prefix", prefix), bindparam("below", below), bindparam("root", root)
                )
            )
