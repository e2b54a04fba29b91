"""Test a server that ends connections or is temporarily unreachable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import make_url, text

from detcore.errors import DatabaseError
from detcore.log.writing import EventLog
from detcore.records import ingest_event_logs

if TYPE_CHECKING:
    from postgresql_server import PostgreSQLServer
    from tests.records.conftest import Store


def end_connections(server: PostgreSQLServer, store: Store) -> None:
    name = make_url(store.url).database
    ended = server.execute(
        "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity "
        f"WHERE datname = '{name}' AND pid <> pg_backend_pid()"
    )
    assert ended
    assert all(row[0] for row in ended)


def test_closed_idle_connection_is_replaced(
    postgresql_store: Store, postgresql: PostgreSQLServer
) -> None:
    end_connections(postgresql, postgresql_store)
    assert postgresql_store.database.start_run(postgresql_store.trial_id) == 2
    end_connections(postgresql, postgresql_store)
    assert postgresql_store.database.get_trial(postgresql_store.trial_id).run_id == 2


def test_transaction_fails_when_disconnected(
    postgresql_store: Store, postgresql: PostgreSQLServer
) -> None:
    database = postgresql_store.database

    def write() -> None:
        with database._begin_write() as connection:
            connection.execute(text("UPDATE experiments SET name = 'half'"))
            end_connections(postgresql, postgresql_store)
            connection.execute(text("UPDATE experiments SET name = 'whole'"))

    with pytest.raises(DatabaseError, match=r"cannot be used: [\s\S]*or correct DETCORE_DB"):
        write()
    assert database.get_experiment(1).name == "n"
    assert database.start_run(postgresql_store.trial_id) == 2  # the lock is free too


def test_reports_wait_for_the_server(postgresql_store: Store, postgresql: PostgreSQLServer) -> None:
    store = postgresql_store
    log = EventLog(store.log(), trial_id=store.trial_id, run_id=store.run_id)
    postgresql.stop()
    try:
        log.append("validation", {"steps_completed": 1, "metrics": {"loss": 0.5}})
        with pytest.raises(DatabaseError, match=r"Start the server, or correct DETCORE_DB"):
            ingest_event_logs(store.database, store.home)
    finally:
        postgresql.start()
        log.close()
    assert ingest_event_logs(store.database, store.home) == 1
    best = store.database.trial_best_validation(store.trial_id, "loss", smaller_is_better=True)
    assert best is not None
    assert best.metrics == {"loss": 0.5}
