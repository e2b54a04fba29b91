"""Searches that are cut off: by their method, by a kill at the end, between report and log."""

from __future__ import annotations

import json
from collections import Counter

from search_command import Searches
from sqlalchemy import select, text
from toy_command import MODEL_DIR, Detcore

from detcore.records import Database
from detcore.records.schema import metrics


def validations(database: Database) -> Counter[tuple[int, int]]:
    """Count the validations of all runs, those that were repeated too, by trial and steps."""
    columns = (metrics.c.trial_id, metrics.c.steps_completed)
    with database._engine.connect() as connection:
        rows = connection.execute(select(*columns).where(metrics.c.kind == "validation"))
        return Counter((row[0], row[1]) for row in rows)


def test_failing_search_method_ends_run(detcore: Detcore) -> None:
    searches = Searches(detcore)
    mood = searches.code / "mood"
    mood.touch()
    searcher = {"name": "moody", "max_trials": 3, "max_length": 2, "mood": str(mood)}
    finished = detcore.run_failing("run", searches.config(searcher=searcher), searches.code)
    message = "the search method Moody failed at"
    assert message in finished.stderr
    assert "not in the mood" in finished.stderr
    with searches.database() as database:
        record = database.get_experiment(1)
    assert record.state.value == "ERROR"
    assert message in str(record.error)
    assert [trial.state.value for trial in searches.trials()] == ["COMPLETED", "PAUSED"]
    assert [event["trial"] for event in searches.events()[1:]] == [0]
    mood.unlink()
    assert searches.resume()["state"] == "COMPLETED"
    lengths = [(event["trial"], event["length"]) for event in searches.events()[1:]]
    assert lengths == [(0, 2), (1, 4), (2, 8)]
    # The second runner reports the training so far; the first is not started again.
    starts = [(start["trial"], start["from"]) for start in searches.starts()]
    assert starts == [(1, 0), (2, 0), (2, 4), (3, 0)]


def test_unlogged_report_is_not_validated_again(
    detcore: Detcore,
) -> None:
    detcore.run_checked("run", detcore.config(), MODEL_DIR, "--json")
    with detcore.database() as database:
        events = database.list_search_events(1)
        before = validations(database)
        # As a kill would leave it: the trial's last validation is recorded, its report is not.
        with database._engine.begin() as connection:
            connection.execute(text("DELETE FROM search_events WHERE number > 0"))
            connection.execute(text("UPDATE trials SET state = 'RUNNING', ended_at = NULL"))
            connection.execute(text("UPDATE experiments SET state = 'RUNNING', ended_at = NULL"))
    detcore.run_checked("run", "--resume", 1, "--json")
    with detcore.database() as database:
        assert database.list_search_events(1) == events
        assert validations(database) == before
        assert database.get_trial(1).state.value == "COMPLETED"


def test_runner_killed_while_deleting_recovers(detcore: Detcore) -> None:
    # At its end, or on a slow machine while the trial trains: it looks each second.
    orders = detcore.tmp_path / "orders.json"
    orders.write_text(json.dumps({"kill_at_delete": 2}))
    root = detcore.tmp_path / "bucket"
    storage = {
        "type": "slow",
        "root": str(root),
        "orders": str(orders),
        "save_trial_latest": 1,
        "save_trial_best": 0,
        "save_experiment_best": 0,
    }
    killed = detcore("run", detcore.config(checkpoint_storage=storage), MODEL_DIR)
    assert killed.code == -9
    orders.unlink()
    detcore.run_checked("run", "--resume", 1)
    with detcore.database() as database:
        records = database.list_checkpoints(experiment_id=1)
        states = sorted((record.steps_completed, record.state) for record in records)
    assert states == [(10, "DELETED"), (20, "DELETED"), (30, "DELETED"), (40, "COMPLETED")]
    (uuid,) = (record.uuid for record in records if record.state == "COMPLETED")
    files = {path.relative_to(root).parts[0] for path in root.rglob("*") if path.is_file()}
    assert files == {uuid}
    assert detcore("checkpoint", "verify", uuid).code == 0
