"""Tests of a server on PostgreSQL: records, a database restart and a backup."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgresql_server import PostgreSQLServer, run_server
from running_server import PASSWORD, USER, RunningServer
from toy_command import MODEL_DIR, TOY_PLUGIN, OnPostgresql

from detcore.client import Determined
from detcore.errors import ConfigError, DatabaseError, DetcoreError
from detcore.records import Database
from detcore_server.commands.backup import back_up, describe_database


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgreSQLServer]:
    with run_server() as server:
        yield server


def test_server_on_postgresql(
    postgresql: PostgreSQLServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgresql.url(postgresql.create_database())
    with OnPostgresql(tmp_path) as detcore:
        detcore.url = url
        result = detcore("run", detcore.config(), MODEL_DIR)
        assert result.code == 0, result.output
        plugins = {"PYTHONPATH": str(TOY_PLUGIN), "DETCORE_DB": url}
        with RunningServer(detcore.home, **plugins) as server:
            monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "elsewhere"))
            monkeypatch.setenv("DETCORE_DB", f"sqlite:///{tmp_path / 'elsewhere.db'}")
            with Determined(server.url, USER, PASSWORD) as client:
                session(client, tmp_path)
                restart(client, postgresql)
            assert PASSWORD not in server.log.read_text()
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "elsewhere.db").exists()


def session(client: Determined, tmp_path: Path) -> None:
    """Session of a user."""
    experiment = client.get_experiment(1)
    assert experiment.wait() == "COMPLETED"
    trial = experiment.await_first_trial()
    steps = [report.steps_completed for report in trial.stream_validation_metrics()]
    assert steps == [10, 20, 30, 40]
    best = experiment.top_checkpoint()
    folder = Path(best.download(tmp_path / "copy"))
    assert (folder / "toy.json").is_file()
    model = client.create_model("a/b", metadata={"x": 1})
    assert model.register_version(best.uuid).model_version == 1
    with pytest.raises(DatabaseError, match="a model named 'a/b' already exists"):
        client.create_model("a/b")
    assert list(trial.logs()) == []  # this trial prints nothing


def restart(client: Determined, postgresql: PostgreSQLServer) -> None:
    """Restart the database while the server runs."""
    postgresql.stop(crash=True)
    try:
        with pytest.raises(DetcoreError, match=r"database server of .* cannot be used"):
            client.get_model("a/b")
    finally:
        postgresql.start()
    assert client.get_model("a/b").metadata == {"x": 1}
    client.get_model("a/b").add_metadata({"y": 2})
    assert client.get_model("a/b").metadata == {"x": 1, "y": 2}


def test_backup_with_postgresql_tools(postgresql: PostgreSQLServer, tmp_path: Path) -> None:
    """The commands are those of docs/server.md."""
    live, other = postgresql.create_database(), postgresql.create_database()
    with Database.open(postgresql.url(live)) as database:
        database.create_model("then")
        with pytest.raises(ConfigError, match="pg_dump"):
            back_up(postgresql.url(live), tmp_path / "copy.db")
        where = ["--host", str(postgresql.folder), "--username", "detcore"]
        programs = postgresql.programs
        copy = tmp_path / "records.dump"
        subprocess.run(
            [programs / "pg_dump", *where, "--format", "custom", "--file", copy, live], check=True
        )
        database.create_model("since")
    subprocess.run(
        [programs / "pg_restore", *where, "--exit-on-error", "--dbname", other, copy], check=True
    )
    with Database.open(postgresql.url(other)) as database:
        assert [model.name for model in database.list_models()] == ["then"]
        # New numbers follow the existing numbers.
        assert database.create_model("next").id > database.get_model("then").id
    assert describe_database(postgresql.url(other))["counts"]["models"] == 2
