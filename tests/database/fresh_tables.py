"""The tables of a new SQLite database, as the migrations make them.

    python tests/database/fresh_tables.py --write

writes them to ``migrations/fresh.sql`` after a migration was added.
"""

from __future__ import annotations

import sys

from sqlalchemy import create_engine, text

from detcore.database import _sqlite
from detcore.database._engine import migrate


def migrated_tables() -> str:
    """Return the statements that make the tables of all migrations together."""
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        migrate(connection)
        made = connection.scalars(
            text("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")
        ).all()
        version = connection.scalar(text("SELECT version_num FROM alembic_version"))
    insert = f"INSERT INTO alembic_version VALUES ('{version}')"
    lines = "".join(f"{statement};\n" for statement in (*made, insert)).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


if __name__ == "__main__" and "--write" in sys.argv:
    _sqlite.FRESH.write_text(migrated_tables())
