"""Databases of earlier releases keep their records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from detcore.database import Database
from detcore.database._migrate import MIGRATIONS
from detcore.database._schema import REVISIONS

if TYPE_CHECKING:
    from tests.database.conftest import Places

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


@pytest.mark.parametrize("revision", REVISIONS[:-1])
def test_records_of_an_earlier_release_are_kept(places: Places, revision: str) -> None:
    url = places.new(empty=True)
    engine = create_engine(url)
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        for statement in ROWS.split(";"):
            connection.execute(text(statement.replace('":', '"\\:')))
        if revision >= "0003":
            connection.execute(
                text(
                    "INSERT INTO models (name, description, metadata, labels, archived, "
                    "last_number, created_at, updated_at) "
                    "VALUES ('m', '', '{}', '[]', false, 1, 1.0, 1.0)"
                )
            )
            connection.execute(
                text(
                    "INSERT INTO model_versions (model_id, number, checkpoint_uuid, name, comment, "
                    "notes, metadata, created_at, updated_at) "
                    "VALUES (1, 1, 'c', '', '', '', '{}', 1.0, 1.0)"
                )
            )
    engine.dispose()
    for _ in range(2):
        with Database.open(url) as database:
            (experiment,) = database.list_experiments(labels=["a", "b"])
            assert (experiment.name, experiment.archived) == ("old", False)
            assert experiment.control is None
            assert experiment.progress is None
            (trial,) = database.list_trials(1)
            assert (trial.hparams, trial.run_id, trial.num_restarts) == ({"lr": 0.5}, 1, 0)
            (best,) = database.top_checkpoints(
                experiment_id=1, metric="loss", smaller_is_better=True
            )
            assert (best.checkpoint.uuid, best.value) == ("c", 0.25)
            if revision >= "0003":
                assert database.registered_checkpoints() == {"c": ["m version 1"]}
    with Database.open(url) as database:
        assert database.create_trial(experiment_id=1, hparams={}, seed=0) == 2
