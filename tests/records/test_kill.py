"""Test that acknowledged reports are recorded exactly once after kill -9."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from forked import call_in_child

from detcore.errors import DatabaseError
from detcore.log.writing import EventLog
from detcore.records import Database, ingest_event_logs

if TYPE_CHECKING:
    from databases import Places
    from tests.records.conftest import Nursery, Store

KILLS = 25


def recorded(store: Store) -> list[int]:
    """Return the sequence numbers in the database, in order."""
    training = store.database.metrics(store.trial_id, "training", with_batches=False)
    validation = store.database.metrics(store.trial_id, "validation", with_batches=False)
    return sorted(row.seq or 0 for row in [*training, *validation])


def report(store: Store, *, drain: bool) -> dict[str, Any]:
    return {
        "log": str(store.log()),
        "url": store.url,
        "trial": store.trial_id,
        "run": store.run_id,
        "drain": drain,
    }


def test_reports_survive_kills_at_any_time(
    store: Store, nursery: Nursery, moments: random.Random
) -> None:
    acknowledged: list[int] = []
    for _ in range(KILLS):
        some, code = nursery.run(
            "report", kill_after_s=moments.uniform(0, 0.06), **report(store, drain=False)
        )
        assert code == -9
        acknowledged += some
        ingest_event_logs(store.database, store.home)
        rows = recorded(store)
        assert set(acknowledged) <= set(rows)
        assert len(rows) == len(set(rows))
    assert len(acknowledged) > KILLS  # the children sent reports
    # Each kill may leave one unacknowledged report, but no number is used twice.
    assert len(rows) <= len(acknowledged) + KILLS
    assert len(set(acknowledged)) == len(acknowledged)


@pytest.mark.soak
def test_reports_survive_kills_during_ingestion(
    store: Store, nursery: Nursery, moments: random.Random
) -> None:
    acknowledged: list[int] = []
    num_kills = moved = 0
    # On a busy machine, more kills are needed until the children have copied reports.
    while num_kills < KILLS or moved <= KILLS:
        num_kills += 1
        before = len(recorded(store))
        some, code = nursery.run(
            "report", kill_after_s=moments.uniform(0.05, 0.3), **report(store, drain=True)
        )
        assert code == -9
        acknowledged += some
        moved += len(recorded(store)) - before
        ingest_event_logs(store.database, store.home)
        rows = recorded(store)
        assert set(acknowledged) <= set(rows)
        assert len(rows) == len(set(rows))
    assert len(set(acknowledged)) == len(acknowledged)


def test_concurrent_ingestion_adds_reports_once(
    store: Store, nursery: Nursery, moments: random.Random
) -> None:
    num_copied = 0

    def read() -> None:
        nonlocal num_copied
        for _ in range(30):
            num_copied += ingest_event_logs(store.database, store.home)

    acknowledged, _ = nursery.run(
        "report", kill_after_s=0.4, during=read, **report(store, drain=True)
    )
    ingest_event_logs(store.database, store.home)
    rows = recorded(store)
    assert set(acknowledged) <= set(rows)
    assert len(rows) == len(set(rows))


@pytest.mark.soak
def test_database_survives_kill_during_first_open(
    places: Places, nursery: Nursery, moments: random.Random
) -> None:
    for _ in range(KILLS):
        url = places.new(empty=True)
        nursery.run("open", kill_after_s=moments.uniform(0.001, 0.1), url=url)
        with Database.open(url) as database:
            database.create_experiment(config={}, config_text=None, model_dir="/m", name="x")
            assert [row.id for row in database.list_experiments()] == [1]


def test_forked_child_opens_new_connections(store: Store, nursery: Nursery) -> None:
    for expected in (2, 3):
        ids, code = nursery.run("inherit", kill_after_s=None, url=store.url)
        assert (ids, code) == ([expected], 0)
    assert len(store.database.list_experiments()) == 3


def test_forked_child_cannot_report(store: Store) -> None:
    log = EventLog(store.log(), trial_id=store.trial_id, run_id=store.run_id)

    def report() -> None:
        with pytest.raises(DatabaseError, match="Only the process that opened it may report"):
            log.append("training", {"steps_completed": 1, "metrics": {}})

    call_in_child(report)
    log.close()


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_incomplete_line_is_overwritten(store: Store, cut: int) -> None:
    def log() -> EventLog:
        return EventLog(store.log(), trial_id=store.trial_id, run_id=store.run_id)

    first = log()
    for step in (1, 2, 3):
        first.append("training", {"steps_completed": step, "metrics": {"loss": 1.5}})
    first.close()
    os.truncate(store.log(), store.log().stat().st_size - cut)
    assert ingest_event_logs(store.database, store.home) == 2
    second = log()
    assert second.append("training", {"steps_completed": 4, "metrics": {"loss": 2.5}}) == 3
    second.close()
    assert ingest_event_logs(store.database, store.home) == 1
    steps = [row.steps_completed for row in store.database.metrics(store.trial_id, "training")]
    assert steps == [1, 2, 4]
    assert store.database.events(store.trial_id) == []
