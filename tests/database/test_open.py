"""Opening: new, old, newer, damaged, forbidden, by many at once."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from detcore.database import Database, _migrate, _schema
from detcore.errors import DatabaseError

if TYPE_CHECKING:
    from tests.database.conftest import Store

PROGRAMS = Path(__file__).parent / "programs"
SOURCE = Path(_schema.__file__).parent


def test_eight_processes_may_open_a_new_database_at_once(tmp_path: Path) -> None:
    url, go = f"sqlite:///{tmp_path / 'deep' / 'home' / 'detcore.db'}", tmp_path / "go"
    command = [sys.executable, str(PROGRAMS / "open_together.py"), url, str(go)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    go.touch()
    ids = []
    for process in processes:
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        ids.append(int(stdout))
    assert sorted(ids) == list(range(1, 9))


def test_the_pragmas_are_set(store: Store) -> None:
    with store.database._read() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert found == {
        "journal_mode": "wal",
        "synchronous": 1,
        "foreign_keys": 1,
        "busy_timeout": 30_000,
    }


def test_the_file_is_for_its_owner_only(store: Store) -> None:
    for path in store.home.glob("detcore.db*"):
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_migrations_make_the_tables_that_the_code_uses(store: Store) -> None:
    engine = create_engine(store.url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, _schema.metadata) == []
    engine.dispose()


def test_the_newest_migration_is_the_version_that_the_code_knows() -> None:
    config = Config()
    config.set_main_option("script_location", str(_migrate.MIGRATIONS))
    scripts = ScriptDirectory.from_config(config)
    known = [script.revision for script in scripts.walk_revisions()]
    assert tuple(reversed(known)) == _schema.REVISIONS


def test_an_up_to_date_database_is_opened_without_alembic(store: Store) -> None:
    code = (
        "import sys; from detcore.database import Database\n"
        "Database.open(sys.argv[1]).list_experiments()\n"
        "print('alembic' in sys.modules, 'sqlalchemy.orm' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, store.url], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False False\n"


def test_a_database_of_a_newer_release_is_refused(store: Store) -> None:
    with sqlite3.connect(store.file) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(DatabaseError, match="has schema 9999, which is newer than detcore"):
        Database.open(store.url)
    with pytest.raises(DatabaseError, match=r"pip install --upgrade detcore"):
        Database.open(store.url)


def test_tables_of_another_program_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE experiments (id INTEGER)")
    connection.close()
    with pytest.raises(DatabaseError, match="has tables of other programs: experiments"):
        Database.open(f"sqlite:///{path}")


def test_an_empty_file_is_a_new_database(tmp_path: Path) -> None:
    path = tmp_path / "detcore.db"
    path.touch()
    with Database.open(f"sqlite:///{path}") as database:
        assert database.list_experiments() == []


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "detcore.db"
    path.write_bytes(b"not a database at all " * 500)
    with pytest.raises(DatabaseError, match="is damaged or not a database") as caught:
        Database.open(f"sqlite:///{path}")
    assert f"mv {path} {path}.damaged" in str(caught.value)


def test_a_damaged_database_is_an_error_not_a_wrong_answer(store: Store) -> None:
    for _ in range(300):
        store.database.create_experiment(
            config={"x": "y" * 300}, config_text=None, model_dir="/m", name="n"
        )
    store.database.close()
    with sqlite3.connect(store.file) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    size = store.file.stat().st_size
    with store.file.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    with (
        pytest.raises(DatabaseError, match="is damaged or not a database"),
        Database.open(store.url) as database,
    ):
        database.list_experiments()


def test_a_read_only_place_is_named(mounted: Path) -> None:
    url = f"sqlite:///{mounted / 'home' / 'detcore.db'}"
    Database.open(url).close()
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    with pytest.raises(DatabaseError, match=r"is read-only: .* may not be written") as caught:
        Database.open(url)
    assert "set DETCORE_HOME" in str(caught.value)
    with pytest.raises(DatabaseError, match=r"cannot create the folder .* Read-only file system"):
        Database.open(f"sqlite:///{mounted / 'other' / 'detcore.db'}")


def test_a_database_that_may_only_be_read_now_is_named(store: Store) -> None:
    with store.database._read() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(DatabaseError, match="cannot be opened or written"):
        store.database.start_run(store.trial_id)


def test_a_database_that_stays_locked_is_named(store: Store) -> None:
    with store.database._read() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 100")
    holder = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "hold_lock.py"), str(store.file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(DatabaseError, match="was locked by another process") as caught:
        store.database.start_run(store.trial_id)
    assert f"lsof {store.file}" in str(caught.value)
    assert store.database.get_trial(store.trial_id).run_id == 1  # readers do not wait
    holder.communicate(b"")
    assert store.database.start_run(store.trial_id) == 2


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://", "is not a file of its own"),
        ("sqlite:///:memory:", "is not a file of its own"),
        ("sqlite:////tmp", "is a folder"),
        ("sqlite:////dev/null/x.db", "cannot create the folder"),
        ("nonsense", "cannot be used"),
        ("nonsense://user:secret@host/x", "cannot be used"),
        ("user:secret@host", "cannot be used"),
    ],
)
def test_a_url_that_cannot_be_used_is_told_without_its_password(url: str, says: str) -> None:
    with pytest.raises(DatabaseError, match=says) as caught:
        Database.open(url)
    assert "secret" not in str(caught.value)


def test_a_missing_driver_ends_in_a_pip_command() -> None:
    with pytest.raises(DatabaseError, match=r"python -m pip install \w+") as caught:
        Database.open("mysql+pymysql://user:secret@host/x")
    assert "secret" not in str(caught.value)


def test_a_relative_path_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Database.open("sqlite:///here.db") as database:
        database.close()
        monkeypatch.chdir("/")
        database.create_experiment(config={}, config_text=None, model_dir="/m", name="n")
    assert (tmp_path / "here.db").exists()


def test_the_tables_can_be_made_on_postgresql() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's own
    for table in _schema.metadata.sorted_tables:
        CreateTable(table).compile(dialect=dialect)
        for index in table.indexes:
            CreateIndex(index).compile(dialect=dialect)
            assert index.name is not None
            assert len(index.name) < 64


def test_sql_that_only_sqlite_knows_is_in_one_file() -> None:
    special = re.compile(r"PRAGMA|BEGIN IMMEDIATE|INSERT OR|json_extract|sqlite_insert|rowid")
    for path in SOURCE.rglob("*.py"):
        if path.name != "_sqlite.py":
            assert not special.search(path.read_text()), path
