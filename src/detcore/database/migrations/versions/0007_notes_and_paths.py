"""Add notes of experiments, and keep paths below the home relative to it.

Earlier releases would not find the files that the paths name.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op
from sqlalchemy import bindparam, text

from detcore.database._text import PATH_PREFIX, URL_PREFIX, home_of

revision = "0007"
down_revision = "0006"

_COLUMNS = (("experiments", "model_dir"), ("trials", "trial_dir"), ("checkpoints", "storage_url"))


def upgrade() -> None:
    """Add the column; rewrite the paths of an SQLite database, since others have no home."""
    op.add_column("experiments", sa.Column("notes", sa.Text))
    home = home_of(op.get_bind().dialect)
    if home is None:
        return
    for folder in (home, *_former_homes(home)):
        for prefix, root in ((PATH_PREFIX, str(folder)), (URL_PREFIX, folder.as_uri())):
            _make_relative(prefix, root)


def _make_relative(prefix: str, root: str) -> None:
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


def _former_homes(home: Path) -> set[Path]:
    """Return where a home was whose trials' folders are here now, and no longer there."""
    former: set[Path] = set()
    trials = text("SELECT id, experiment_id, trial_dir FROM trials WHERE trial_dir IS NOT NULL")
    for trial_id, experiment_id, trial_dir in op.get_bind().execute(trials):
        below = f"/experiments/{experiment_id}/trials/{trial_id}"
        root = Path(trial_dir.removesuffix(below))
        is_known = root in (home, *former) or not trial_dir.endswith(below)
        if not is_known and not root.exists() and Path(f"{home}{below}").is_dir():
            former.add(root)
    return former
