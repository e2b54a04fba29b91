"""Tables of plugins: migrated apart from those of the records."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import inspect, text

from detcore.database import Database, revisions
from detcore.errors import DatabaseError
from detcore.hooks import TablesType

if TYPE_CHECKING:
    from tests.database.conftest import Store

MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = {revision!r}, {before!r}, None, None


def upgrade():
    {body}
"""
FIRST = """op.create_table(
        "grades",
        sa.Column("trial_id", sa.Integer, sa.ForeignKey("trials.id"), nullable=False),
        sa.Column("experiment_id", sa.Integer, sa.ForeignKey("experiments.id")),
        sa.Column("grade", sa.Integer, nullable=False),
    )"""
SECOND = 'op.add_column("grades", sa.Column("remark", sa.Text))'
FAILING = f"{SECOND}; raise RuntimeError('killed')"
Write = Callable[..., type[Database]]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write the migrations of a plugin; return its kind of database."""
    # Alembic splits locations in a configuration at these characters.
    folder = tmp_path / "a, b; c%d" / "migrations"
    folder.mkdir(parents=True)
    (tmp_path / "gradebook.py").write_text(
        f"from pathlib import Path\nMIGRATIONS = Path({str(folder)!r})\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "gradebook", raising=False)

    def _write(*bodies: str) -> type[Database]:
        before = None
        for number, body in enumerate(bodies, 1):
            revision = f"{number:04}"
            source = MIGRATION.format(revision=revision, before=before, body=body)
            (folder / f"{revision}_step.py").write_text(source, encoding="utf-8")
            before = revision
        revisions = tuple(f"{number:04}" for number in range(1, len(bodies) + 1))
        kind = TablesType(name="grade-book", migrations="gradebook:MIGRATIONS", revisions=revisions)
        return type("GradeBook", (Database,), {"tables": kind})

    return _write


def version_of(store: Store, table: str) -> str | None:
    with store.database.transaction(write=False) as connection:
        if not inspect(connection).has_table(table):
            return None
        return str(connection.scalar(text(f'SELECT version_num FROM "{table}"')))


def columns_of(database: Database) -> list[str]:
    with database.transaction(write=False) as connection:
        return list(connection.execute(text("SELECT * FROM grades")).keys())


def test_they_are_made_and_migrated_where_the_plugin_needs_them(store: Store, write: Write) -> None:
    assert version_of(store, "alembic_version_grade-book") is None
    with write(FIRST).open(store.url) as database:
        assert columns_of(database) == ["trial_id", "experiment_id", "grade"]
        add_grade(store)
    assert version_of(store, "alembic_version_grade-book") == "0001"
    newer = write(FIRST, SECOND)
    with newer.open(store.url) as database:
        assert columns_of(database) == ["trial_id", "experiment_id", "grade", "remark"]
        with database.transaction(write=False) as connection:
            assert connection.execute(text("SELECT grade FROM grades")).scalar() == 3
        assert database.get_experiment(store.experiment_id).name == "n"
    assert version_of(store, "alembic_version_grade-book") == "0002"
    assert version_of(store, "alembic_version") == revisions()[-1]
    with Database.open(store.url) as database:  # of a machine without the plugin
        assert database.get_trial(store.trial_id).seed == 7


def test_a_migration_that_fails_leaves_the_tables_as_they_were(store: Store, write: Write) -> None:
    with write(FIRST).open(store.url):
        add_grade(store)
    with pytest.raises(RuntimeError, match="killed"):
        write(FIRST, FAILING).open(store.url)
    assert version_of(store, "alembic_version_grade-book") == "0001"
    assert columns_of(store.database) == ["trial_id", "experiment_id", "grade"]


def test_tables_of_a_newer_plugin_are_refused(store: Store, write: Write) -> None:
    write(FIRST, SECOND).open(store.url).close()
    with pytest.raises(
        DatabaseError, match="version 0002 of the tables of the plugin 'grade-book'"
    ):
        write(FIRST).open(store.url)
    assert store.database.get_experiment(store.experiment_id).name == "n"


def test_rows_of_an_experiment_are_deleted_with_it(store: Store, write: Write) -> None:
    """Also where the plugin is not installed."""
    write(FIRST).open(store.url).close()
    add_grade(store)
    database = store.database
    other = database.create_experiment(config={}, config_text=None, model_dir="/m", name="other")
    trial = database.create_trial(experiment_id=other, hparams={}, seed=0)
    add_grade(store, trial, other)
    database.delete_experiment(store.experiment_id)
    with database.transaction(write=False) as connection:
        rows = connection.execute(text("SELECT trial_id, experiment_id FROM grades"))
        assert [tuple(row) for row in rows] == [(trial, other)]


def add_grade(store: Store, trial: int | None = None, experiment: int | None = None) -> None:
    values = {"trial": trial or store.trial_id, "experiment": experiment or store.experiment_id}
    with store.database.transaction(write=True) as connection:
        connection.execute(text("INSERT INTO grades VALUES (:trial, :experiment, 3)"), values)
