"""Test opening new, old, newer, damaged and protected databases, also concurrently."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from detcore.errors import DatabaseError
from detcore.records import Database, engine, schema

if TYPE_CHECKING:
    from databases import Places
    from tests.records.conftest import Store

PROGRAMS = Path(__file__).parent / "programs"


def test_database_file_is_private(sqlite_store: Store) -> None:
    for path in sqlite_store.home.glob("detcore.db*"):
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_dangling_link_as_home_is_reported(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("missing")
    message = f"{tmp_path}/link is a symbolic link to missing, which is missing"
    with pytest.raises(DatabaseError, match=re.escape(message)):
        Database.open(f"sqlite:///{tmp_path}/link/home/detcore.db")


def test_new_database_has_tables_of_schema(store: Store) -> None:
    engine = create_engine(store.url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()


def test_newest_migration_is_current_version() -> None:
    config = Config()
    config.set_main_option("script_location", str(engine.MIGRATIONS))
    scripts = ScriptDirectory.from_config(config)
    revisions = [script.revision for script in scripts.walk_revisions()]
    assert tuple(reversed(revisions)) == engine.list_revisions()


def test_new_database_needs_no_alembic(store: Store, tmp_path: Path) -> None:
    urls = [store.url, *([f"sqlite:///{tmp_path}/new.db"] if store.is_sqlite else [])]
    code = (
        "import sys; from detcore.records import Database\n"
        "for url in sys.argv[1:]: Database.open(url).list_experiments()\n"
        "print('alembic' in sys.modules, 'sqlalchemy.orm' in sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, *urls], capture_output=True, text=True, check=True
    )
    assert finished.stdout == "False False\n"


def test_newer_database_is_rejected(store: Store) -> None:
    with store.database._begin_write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999_9_9'")
    with pytest.raises(DatabaseError, match="has schema 9999_9_9, which is newer than detcore"):
        Database.open(store.url)
    with pytest.raises(DatabaseError, match=r"pip install --upgrade detcore"):
        Database.open(store.url)


MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "0002_0_2_0", {before!r}


def upgrade():
    op.add_column("models", sa.Column("remark", sa.Text))
    if {fails}:
        raise RuntimeError("killed")
"""


@pytest.fixture
def write_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Return a function that adds a migration."""
    folder = tmp_path / "migrations"
    shutil.copytree(engine.MIGRATIONS, folder)
    before = engine.list_revisions()[-1]

    def write(fails: bool) -> None:
        text = MIGRATION.format(before=before, fails=fails)
        (folder / "versions" / "0002_0_2_0.py").write_text(text, encoding="utf-8")
        monkeypatch.setattr(engine, "MIGRATIONS", folder)

    return write


def describe_tables(store: Store) -> tuple[str, list[str]]:
    """Return the version of the tables and the columns of one table."""
    with store.database._begin_read() as connection:
        version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        return str(version), list(connection.exec_driver_sql("SELECT * FROM models").keys())


def test_older_database_is_migrated(store: Store, write_migration: Callable[[bool], None]) -> None:
    _, columns = describe_tables(store)
    write_migration(False)
    for _ in range(2):
        with Database.open(store.url) as database:
            assert database.get_experiment(store.experiment_id).name == "n"
        assert describe_tables(store) == ("0002_0_2_0", [*columns, "remark"])


def test_failed_migration_leaves_tables_unchanged(
    store: Store, write_migration: Callable[[bool], None]
) -> None:
    before = describe_tables(store)
    write_migration(True)
    with pytest.raises(RuntimeError, match="killed"):
        Database.open(store.url)
    assert describe_tables(store) == before


def test_rejected_database_is_closed(sqlite_store: Store) -> None:
    with sqlite_store.database._begin_write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999_9_9'")
    sqlite_store.database.close()
    with pytest.raises(DatabaseError, match="newer than detcore") as refused:
        Database.open(sqlite_store.url)
    opened = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
    file = os.path.realpath(sqlite_store.file)
    assert not [path for path in opened if path.startswith(file)], refused


def test_tables_of_other_programs_are_not_changed(places: Places) -> None:
    url = places.new(empty=True)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE experiments (id INTEGER)")
    engine.dispose()
    with pytest.raises(DatabaseError, match="has tables of other programs: experiments"):
        Database.open(url)


def test_an_empty_file_is_a_new_database(tmp_path: Path) -> None:
    path = tmp_path / "detcore.db"
    path.touch()
    with Database.open(f"sqlite:///{path}") as database:
        assert database.list_experiments() == []


def test_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "detcore.db"
    path.write_bytes(b"not a database at all " * 500)
    with pytest.raises(DatabaseError, match="is damaged or not a database") as caught:
        Database.open(f"sqlite:///{path}")
    assert f"mv {path} {path}.damaged" in str(caught.value)


def test_damaged_database_is_an_error(sqlite_store: Store) -> None:
    for _ in range(300):
        sqlite_store.database.create_experiment(
            config={"x": "y" * 300}, config_text=None, model_dir="/m", name="n"
        )
    sqlite_store.database.close()
    with sqlite3.connect(sqlite_store.file) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    size = sqlite_store.file.stat().st_size
    with sqlite_store.file.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    with (
        pytest.raises(DatabaseError, match="is damaged or not a database"),
        Database.open(sqlite_store.url) as database,
    ):
        database.list_experiments()


@pytest.mark.parametrize(
    ("column", "value"), [("state", "DONE"), ("config", '{"x": '), ("created_at", 1e300)]
)
def test_unknown_value_is_reported_as_damage(
    sqlite_store: Store, column: str, value: object
) -> None:
    sqlite_store.database.create_experiment(config={}, config_text=None, model_dir="/m", name="n")
    with sqlite3.connect(sqlite_store.file) as connection:
        connection.execute(f"UPDATE experiments SET {column} = ?", (value,))
    connection.close()
    with pytest.raises(DatabaseError, match=re.escape(f"damaged: '{value}' cannot be read: ")):
        sqlite_store.database.list_experiments()


def test_damage_without_message_is_reported(sqlite_store: Store) -> None:
    sqlite_store.database.close()
    with sqlite3.connect(sqlite_store.file) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    content = sqlite_store.file.read_bytes()
    assert b"CREATE TABLE experiments" in content
    sqlite_store.file.write_bytes(content.replace(b"CREATE TABLE", b"CREATE \xff\xfeBLE"))
    with pytest.raises(DatabaseError, match="is damaged or not a database"):
        Database.open(sqlite_store.url)


def test_read_only_directory_is_reported(mounted: Path) -> None:
    url = f"sqlite:///{mounted / 'home' / 'detcore.db'}"
    Database.open(url).close()
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    with Database.open(url) as database:
        assert database.is_read_only
        assert database.list_experiments() == []
        with pytest.raises(DatabaseError, match="can be read, but not changed") as caught:
            database.create_experiment(config={}, config_text=None, model_dir="/m", name="n")
    assert "set DETCORE_HOME" in str(caught.value)
    with pytest.raises(DatabaseError, match=r"cannot be created: .* is read-only"):
        Database.open(f"sqlite:///{mounted / 'home' / 'other.db'}")
    with pytest.raises(
        DatabaseError, match=r"cannot create the directory .* Read-only file system"
    ):
        Database.open(f"sqlite:///{mounted / 'other' / 'detcore.db'}")


def test_newly_read_only_database_is_reported(sqlite_store: Store) -> None:
    with sqlite_store.database._begin_read() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(DatabaseError, match="cannot be opened or written"):
        sqlite_store.database.start_run(sqlite_store.trial_id)


def test_locked_database_is_reported(sqlite_store: Store) -> None:
    with sqlite_store.database._begin_read() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 100")
    holder = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "hold_lock.py"), sqlite_store.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(DatabaseError, match="was locked by another process") as caught:
        sqlite_store.database.start_run(sqlite_store.trial_id)
    assert f"lsof {sqlite_store.file}" in str(caught.value)
    assert sqlite_store.database.get_trial(sqlite_store.trial_id).run_id == 1  # no wait
    holder.communicate(b"")
    assert sqlite_store.database.start_run(sqlite_store.trial_id) == 2


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://", "is not a file"),
        ("sqlite:///:memory:", "is not a file"),
        ("sqlite:////tmp", "is a directory"),
        ("sqlite:////dev/null/x.db", "cannot create the directory"),
        ("nonsense", "cannot be used"),
        ("nonsense://user:secret@host/x", "cannot be used"),
        ("user:secret@host", "cannot be used"),
        ("mysql://user:secret@host/x", "detcore supports SQLite and PostgreSQL, not mysql"),
    ],
)
def test_invalid_url_is_reported_without_password(url: str, says: str) -> None:
    with pytest.raises(DatabaseError, match=says) as caught:
        Database.open(url)
    assert "secret" not in str(caught.value)


def test_missing_driver_error_has_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DatabaseError, match=r"python -m pip install pg8000") as caught:
        Database.open("postgresql+pg8000://user:secret@host/x?sslpassword=secret")
    assert "secret" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for url in ("postgresql://host/x", "postgresql+psycopg://host/x"):
        with pytest.raises(DatabaseError, match=r"pip install 'detcore\[postgresql\]'"):
            Database.open(url)


def test_relative_database_path_is_resolved_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Database.open("sqlite:///here.db") as database:
        database.close()
        monkeypatch.chdir("/")
        database.create_experiment(config={}, config_text=None, model_dir="/m", name="n")
    assert (tmp_path / "here.db").exists()


def test_text_that_is_not_utf_8_is_damage(sqlite_store: Store) -> None:
    sqlite_store.database.create_experiment(config={}, config_text=None, model_dir="/m", name="n")
    with contextlib.closing(sqlite3.connect(sqlite_store.file)) as connection, connection:
        connection.execute("UPDATE experiments SET name = CAST(x'ff' AS TEXT)")
    with pytest.raises(DatabaseError, match="is damaged or not a database"):
        sqlite_store.database.list_experiments()


def test_development_database_is_rejected(store: Store) -> None:
    with store.database.transaction(write=True) as connection:
        connection.exec_driver_sql("ALTER TABLE experiments DROP COLUMN script_start")
    with pytest.raises(DatabaseError, match="was created by a development version of detcore"):
        store.database.get_experiment(store.experiment_id)
