"""Databases of earlier releases keep their records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, inspect, text

from detcore.database import Database, _sqlite
from detcore.database._engine import migrate, revisions

from .fresh_tables import migrated_tables

if TYPE_CHECKING:
    from databases import Places
    from tests.database.conftest import Nursery

ROWS = """
INSERT INTO experiments (name, state, config, model_dir, created_at)
    VALUES ('old', 'COMPLETED', '{"labels": ["a", "b"], "searcher": {}}', '/m', 1.0);
INSERT INTO trials (experiment_id, state, hparams, seed, created_at)
    VALUES (1, 'COMPLETED', '{"lr": 0.5}', 7, 1.0);
INSERT INTO runs (trial_id, run_id, process, started_at)
    VALUES (1, 1, '{"host": "h", "pid": 1}', 1.0);
INSERT INTO metrics (trial_id, run_id, seq, kind, steps_completed, metrics, reported_at)
    VALUES (1, 1, 1, 'validation', 10, '{"loss":0.25}', 2.0);
INSERT INTO validation_values (metric_id, name, experiment_id, trial_id, value)
    VALUES (1, 'loss', 1, 1, 0.25);
INSERT INTO checkpoints (uuid, trial_id, experiment_id, storage_url, state, steps_completed,
                         metadata, resources, started_at, committed_at)
    VALUES ('c', 1, 1, 's', 'COMPLETED', 10, '{}', '{"a": 5}', 2.0, 3.0)
"""
MODEL_ROWS = """
INSERT INTO models (name, description, metadata, labels, archived, last_number, created_at,
                    updated_at)
    VALUES ('m', '', '{}', '[]', false, 1, 1.0, 1.0);
INSERT INTO model_versions (model_id, number, checkpoint_uuid, name, comment, notes, metadata,
                            created_at, updated_at)
    VALUES (1, 1, 'c', '', '', '', '{}', 1.0, 1.0)
"""
LABEL_ROWS = """
INSERT INTO experiment_labels (label, experiment_id) VALUES ('a', 1);
INSERT INTO experiment_labels (label, experiment_id) VALUES ('b', 1)
"""
USER_ROWS = """
INSERT INTO users (name, password_hash, is_admin, is_active, created_at)
    VALUES ('ada', 'kept', true, true, 1.0);
INSERT INTO tokens (digest, user_id, created_at, expires_at) VALUES ('d', 1, 1.0, 9e12)
"""
# What each release wrote that those before it did not.
ROWS_SINCE = {"0001": ROWS, "0003": MODEL_ROWS, "0004": LABEL_ROWS, "0005": USER_ROWS}
EARLIER = revisions()[-2]
STATEMENTS_BETWEEN_KILLS = 7


def make_old(url: str, revision: str) -> None:
    """Fill an empty database as an earlier release did."""
    engine = create_engine(url)
    with engine.begin() as connection:
        migrate(connection, to=revision)
        for since, rows in ROWS_SINCE.items():
            for statement in rows.split(";") if revision >= since else ():
                connection.execute(text(statement.replace('":', '"\\:')))
    engine.dispose()


def tables_of(url: str) -> tuple[str, dict[str, set[str]]]:
    """Return the schema version of a database, and the columns of its tables."""
    engine = create_engine(url)
    with engine.connect() as connection:
        version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        there = inspect(connection)
        columns = {
            name: {column["name"] for column in there.get_columns(name)}
            for name in there.get_table_names()
        }
    engine.dispose()
    return str(version), columns


@pytest.mark.parametrize("revision", revisions()[:-1])
def test_records_of_an_earlier_release_are_kept(places: Places, revision: str) -> None:
    url = places.new(empty=True)
    make_old(url, revision)
    for _ in range(2):
        with Database.open(url) as database:
            (experiment,) = database.list_experiments(labels=["a", "b"])
            assert (experiment.name, experiment.archived) == ("old", False)
            assert experiment.control is None
            assert experiment.progress is None
            (trial,) = database.list_trials(1)
            assert (trial.hparams, trial.run_id, trial.num_restarts) == ({"lr": 0.5}, 1, 0)
            assert (trial.labels, trial.notes) == ((), "")
            (best,) = database.top_checkpoints(
                experiment_id=1, metric="loss", smaller_is_better=True
            )
            assert (best.checkpoint.uuid, best.value) == ("c", 0.25)
            if revision >= "0003":
                assert database.registered_checkpoints() == {"c": ["m version 1"]}
            if revision >= "0005":
                with database.transaction(write=False) as connection:
                    kept = connection.execute(text("SELECT name, digest FROM users, tokens"))
                    assert [tuple(row) for row in kept] == [("ada", "d")]
    with Database.open(url) as database:
        assert database.create_trial(experiment_id=1, hparams={}, seed=0) == 2
        assert database.update_trial(1, add_labels=["a"]).labels == ("a",)


def test_a_new_sqlite_database_has_the_tables_of_all_migrations() -> None:
    assert _sqlite.FRESH.read_text() == migrated_tables(), (
        "the migrations make other tables than migrations/fresh.sql: run "
        "python tests/database/fresh_tables.py --write"
    )


def test_a_kill_in_an_upgrade_leaves_the_old_or_the_new_tables(
    places: Places, nursery: Nursery
) -> None:
    whole = {}
    for revision in (EARLIER, revisions()[-1]):
        url = places.new(empty=True)
        make_old(url, revision)
        whole[revision] = tables_of(url)[1]
    assert whole[EARLIER] != whole[revisions()[-1]]
    codes: list[int] = []
    while not codes or codes[-1]:
        url = places.new(empty=True)
        make_old(url, EARLIER)
        statement = 1 + STATEMENTS_BETWEEN_KILLS * len(codes)
        _, code = nursery.run("upgrade", kill_after_s=None, url=url, statement=statement)
        codes.append(code)
        version, columns = tables_of(url)
        assert columns == whole[version], statement
        assert version == (EARLIER if code else revisions()[-1])
        with Database.open(url) as database:
            assert [row.name for row in database.list_experiments()] == ["old"]
            assert database.registered_checkpoints() == {"c": ["m version 1"]}
    assert set(codes) == {-9, 0}
