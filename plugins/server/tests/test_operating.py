"""Tests of backup, restore and migration of the record store."""

from __future__ import annotations

import itertools
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from running_server import PASSWORD, USER
from toy_command import Detcore

from detcore.client import Determined
from detcore.errors import ConfigError, DatabaseError
from detcore.records import list_revisions
from detcore_server.commands.backup import back_up, describe_database, restore_backup
from detcore_server.server_database import ServerDatabase
from detcore_server.users.accounts import hash_password

# -- backup ---------------------------------------------------------------------------------------

WRITERS = 20


def numbers_of(database: ServerDatabase) -> dict[str, list[int]]:
    """Return the numbers that each writer has written, by name."""
    by_writer: dict[str, list[int]] = {f"w{index}": [] for index in range(WRITERS)}
    for model in database.list_models():
        writer, _, number = model.name.partition("-")
        assert model.labels == (model.name,) or list(model.labels) == [model.name]
        by_writer[writer].append(int(number))
    return {writer: sorted(numbers) for writer, numbers in by_writer.items()}


def test_backup_during_writes_is_complete(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'live' / 'detcore.db'}"
    ServerDatabase.open(url).close()
    acknowledged = dict.fromkeys((f"w{index}" for index in range(WRITERS)), -1)
    going, over = threading.Barrier(WRITERS + 1), threading.Event()

    def write(writer: str) -> None:
        with ServerDatabase.open(url) as database:
            for number in itertools.count():
                name = f"{writer}-{number}"
                database.create_model(name, labels=[name])
                acknowledged[writer] = number
                if number == 0:
                    going.wait(60)
                if over.is_set():
                    return

    threads = [threading.Thread(target=write, args=(writer,)) for writer in acknowledged]
    for thread in threads:
        thread.start()
    going.wait(60)
    copies = []
    try:
        for index in range(3):
            before = dict(acknowledged)
            copies.append((tmp_path / f"copy{index}.db", before))
            assert back_up(url, copies[-1][0]) == copies[-1][0].stat().st_size
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    with ServerDatabase.open(url) as database:
        last = numbers_of(database)
    assert any(
        last[writer][-1] > before[writer] for writer in last
    )  # the writers did not wait for the end
    for number, (copy, before) in enumerate(copies):
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        restored = f"sqlite:///{tmp_path / f'restored{number}' / 'detcore.db'}"
        restore_backup(copy, restored)
        with ServerDatabase.open(restored) as database:
            reports = numbers_of(database)
        for writer, numbers in reports.items():
            # The backup has no gap and contains everything acknowledged before it started.
            assert numbers == list(range(len(numbers)))
            assert before[writer] < len(numbers) <= len(last[writer])
    leftovers = {path.name for path in tmp_path.iterdir()} - {copy.name for copy, _ in copies}
    assert leftovers == {"live", "restored0", "restored1", "restored2"}


def count_elsewhere(url: str) -> int:
    """Return the number of models that another process finds."""
    code = f"""
from detcore_server.server_database import ServerDatabase
with ServerDatabase.open({url!r}) as database:
    print(len(database.list_models()))
"""
    result = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
    return int(result.stdout)


def test_restore_replaces_records(tmp_path: Path) -> None:
    url, copy = f"sqlite:///{tmp_path / 'detcore.db'}", tmp_path / "copy.db"
    with ServerDatabase.open(url) as database:
        database.create_model("then")
        back_up(url, copy)
        database.create_model("since")
        with pytest.raises(ConfigError, match="already exists, and its records would be lost"):
            restore_backup(copy, url)
        assert len(database.list_models()) == 2
        # Open connections see the restored records too.
        restore_backup(copy, url, replace=True)
        assert [model.name for model in database.list_models()] == ["then"]
        database.create_model("next")
        # Another process must not remove the log of this open connection, because records written
        # afterwards would be invisible to others.
        assert count_elsewhere(url) == 2
        database.create_model("last")
        assert count_elsewhere(url) == 3


def test_database_commands(tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with Detcore(tmp_path) as detcore:
        assert "none yet" in detcore("database", "info").stdout
        assert not (detcore.home / "detcore.db").exists()
        assert (
            f"schema {list_revisions()[-1]}, was not there" in detcore("database", "upgrade").stdout
        )
        assert "bytes" in detcore("database", "backup", copy).stdout
        failed = detcore("database", "restore", copy)
        assert failed.code == 2
        assert "--replace" in failed.stderr
        result = detcore("database", "restore", copy, "--replace")
        assert result.code == 0, result.stderr
        assert detcore("database", "info", "--json").summary["schema"] == list_revisions()[-1]


def test_backup_and_restore_errors(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'detcore.db'}"
    ServerDatabase.open(url).close()
    copy = tmp_path / "copy.db"
    with pytest.raises(ConfigError, match="pg_dump"):
        back_up("postgresql+psycopg://ada:s3cret@host/records", copy)
    with pytest.raises(DatabaseError, match="does not exist"):
        back_up(f"sqlite:///{tmp_path / 'gone.db'}", copy)
    with pytest.raises(ConfigError, match="No such file or directory"):
        back_up(url, tmp_path / "gone" / "copy.db")
    with pytest.raises(ConfigError, match=r"cannot write the backup .*: File name too long"):
        back_up(url, tmp_path / ("a" * 250))
    back_up(url, copy)
    with pytest.raises(ConfigError, match=r"copy\.db already exists"):
        back_up(url, copy)
    damaged = tmp_path / "damaged.db"
    data = bytearray(copy.read_bytes())
    data[4096 * 3 : 4096 * 9] = os.urandom(4096 * 6)
    damaged.write_bytes(data)
    for file in (damaged, tmp_path / "gone"):
        with pytest.raises((DatabaseError, ConfigError), match=r"damaged|does not exist|malformed"):
            restore_backup(file, f"sqlite:///{tmp_path / 'other' / 'x.db'}")
    with pytest.raises(DatabaseError, match=r"damaged|malformed|cannot copy"):
        back_up(f"sqlite:///{damaged}", tmp_path / "copy2.db")
    assert not (tmp_path / "copy2.db").exists()
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    with pytest.raises(DatabaseError, match="is not a detcore record store"):
        restore_backup(other, url, replace=True)
    assert describe_database(url)["schema"] == list_revisions()[-1]


# -- start ----------------------------------------------------------------------------------------


def test_two_servers_start_on_new_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    url = f"sqlite:///{home / 'detcore.db'}"
    starting = [sys.executable, "-m", "detcore", "serve", "--port", "0"]
    environment = {**os.environ, "DETCORE_HOME": str(home)}
    servers = [
        subprocess.Popen(starting, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        addresses = []
        for server in servers:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert " at http" in line, line
            addresses.append(line.split()[-1])
        with ServerDatabase.open(url) as database:
            password_hash = hash_password(PASSWORD)
            database.create_user(USER, password_hash=password_hash, is_admin=True)
        monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "elsewhere"))
        for address in addresses:
            with Determined(address, USER, PASSWORD) as client:
                client.create_model(address)
                assert client.get_model(address).name == address
    finally:
        for server in servers:
            server.terminate()
            server.wait(30)
            assert server.stdout is not None
            server.stdout.close()
    assert describe_database(url)["schema"] == list_revisions()[-1]
