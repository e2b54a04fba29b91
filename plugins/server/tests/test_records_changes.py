"""Tests of late, repeated, unordered and hostile checkpoint and trial events."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detcore.log import events as log_events
from detcore.log.events import (
    CheckpointCommitted,
    CheckpointDamaged,
    CheckpointDeleted,
    CheckpointDeleting,
)
from detcore.log.reading import event_log_path
from detcore.log.writing import EventLog
from detcore.records import CheckpointRecord, Database, ingest_event_logs
from detcore.types import TrialState

UUID = "3f2a0c1e-0000-4000-8000-000000000001"
KINDS = [
    log_events.CheckpointStarted.KIND,
    log_events.CheckpointCommitted.KIND,
    log_events.CheckpointDeleting.KIND,
    log_events.CheckpointDeleted.KIND,
    log_events.CheckpointDamaged.KIND,
    log_events.TrialFailed.KIND,
]


class Records:
    """Database and the event logs of two trials."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.database = Database.open(f"sqlite:///{home / 'detcore.db'}")
        self.experiment_id = self.database.create_experiment(
            config={}, config_text=None, model_dir="/code", name="one"
        )
        self.trial_ids = [self._trial(), self._trial()]

    def _trial(self) -> int:
        trial_id = self.database.create_trial(experiment_id=self.experiment_id, hparams={}, seed=0)
        self.database.start_run(trial_id)
        return trial_id

    def add(self, *changes: tuple[str, Any], trial: int = 0, run_id: int = 1) -> None:
        """Append records to an event log and apply them."""
        trial_id = self.trial_ids[trial]
        folder = self.home / f"experiments/{self.experiment_id}/trials/{trial_id}"
        log = EventLog(event_log_path(folder, run_id), trial_id=trial_id, run_id=run_id)
        for kind, payload in changes:
            log.append(kind, payload)
        log.close()
        assert ingest_event_logs(self.database, self.home) == len(changes)

    def events(self, trial: int = 0) -> list[tuple[str, Any]]:
        """Return the stored events."""
        events = self.database.events(self.trial_ids[trial])
        return [(event.kind, event.payload) for event in events]

    def checkpoint(self) -> CheckpointRecord:
        """Return the only checkpoint."""
        [checkpoint] = self.database.list_checkpoints()
        return checkpoint


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    records = Records(tmp_path)
    yield records
    records.database.close()


def started(**changed: Any) -> tuple[str, Any]:
    return log_events.CheckpointStarted.KIND, {
        "uuid": UUID, "storage_url": "file:///s", "steps_completed": 10, **changed
    }  # fmt: skip


def committed(**changed: Any) -> tuple[str, Any]:
    return log_events.CheckpointCommitted.KIND, {
        "uuid": UUID, "metadata": {"steps_completed": 10}, "resources": {"a": 3, "b/": 0},
        "steps_completed": 10, **changed,
    }  # fmt: skip


def deleting(**changed: Any) -> tuple[str, Any]:
    return log_events.CheckpointDeleting.KIND, {"uuid": UUID, **changed}


def deleted(**changed: Any) -> tuple[str, Any]:
    return log_events.CheckpointDeleted.KIND, {
        "uuid": UUID, "resources": {}, **changed
    }  # fmt: skip


def failed(**changed: Any) -> tuple[str, Any]:
    return log_events.TrialFailed.KIND, {
        "state": "ERROR", "error": "INVALID_HP", **changed
    }  # fmt: skip


def test_checkpoint_events_are_recorded(records: Records) -> None:
    before = time.time()
    records.add(started())
    checkpoint = records.checkpoint()
    assert (checkpoint.state, checkpoint.trial_id) == ("ACTIVE", records.trial_ids[0])
    assert (checkpoint.experiment_id, checkpoint.storage_url) == (
        records.experiment_id,
        "file:///s",
    )
    assert before - 1 <= checkpoint.started_at.timestamp() <= time.time()
    records.add(committed(metadata={"x": math.nan, "y": "NaN"}))
    checkpoint = records.checkpoint()
    assert (checkpoint.state, checkpoint.steps_completed, checkpoint.size_bytes) == (
        "COMPLETED",
        10,
        3,
    )
    assert math.isnan(checkpoint.metadata["x"])
    assert checkpoint.committed_at is not None
    assert before - 1 <= checkpoint.committed_at.timestamp() <= time.time()
    records.add(deleted(resources={"a": 3}))
    assert records.checkpoint().state == "PARTIALLY_DELETED"
    records.add(deleting(), deleted())
    assert records.checkpoint().state == "DELETED"
    assert records.events() == []


def test_late_events_keep_later_decisions(records: Records) -> None:
    """An event log may arrive days after its events were decided otherwise."""
    records.add(started(), committed())
    records.database.record_checkpoint(CheckpointDamaged(uuid=UUID))
    records.add(started(), committed())
    assert records.checkpoint().state == "DAMAGED"
    records.database.record_checkpoint(
        CheckpointCommitted(uuid=UUID, metadata={}, resources={}, steps_completed=10)
    )
    records.database.add_checkpoint_metadata(UUID, {"mine": 1})
    records.add(committed(metadata={"steps_completed": 99}, steps_completed=99))
    assert records.checkpoint().metadata["mine"] == 1
    assert records.checkpoint().steps_completed == 10
    records.database.record_checkpoint(CheckpointDeleting(uuid=UUID))
    records.add(committed(), (log_events.CheckpointDamaged.KIND, {"uuid": UUID}))
    assert records.checkpoint().state == "DELETING"
    records.database.record_checkpoint(CheckpointDeleted(uuid=UUID, resources={}))
    records.add(started(), committed(), deleting(), deleted(resources={"a": 3}))
    assert records.checkpoint().state == "DELETED"
    assert records.events() == []


def test_registered_checkpoint_is_kept(records: Records) -> None:
    records.add(started(), committed())
    records.database.create_model("digits")
    records.database.register_version("digits", UUID)
    refused = [deleting(), deleted(), deleted(resources={"a": 3})]
    records.add(*refused)
    assert records.checkpoint().state == "COMPLETED"
    assert records.events() == refused


def test_trial_cannot_change_other_checkpoints(records: Records) -> None:
    records.add(started(), committed())
    hostile = [
        started(),
        committed(metadata={}),
        deleting(),
        deleted(),
        (log_events.CheckpointDamaged.KIND, {"uuid": UUID}),
    ]
    records.add(*hostile, trial=1)
    checkpoint = records.checkpoint()
    assert (checkpoint.state, checkpoint.trial_id) == ("COMPLETED", records.trial_ids[0])
    assert records.events(1) == hostile


def test_failure_is_recorded_for_newest_run_only(records: Records) -> None:
    trial_id = records.trial_ids[0]
    records.add(failed())
    trial = records.database.get_trial(trial_id)
    assert (trial.state, trial.error) == (TrialState.ERROR, "INVALID_HP")
    records.database.set_trial_state(trial_id, TrialState.COMPLETED)
    records.add(failed())
    assert records.database.get_trial(trial_id).state is TrialState.COMPLETED
    assert records.database.start_run(trial_id) == 2
    records.add(failed())  # of run 1
    assert records.database.get_trial(trial_id).state is TrialState.RUNNING
    records.add(failed(state="COMPLETED"), failed(error=None))
    assert records.database.get_trial(trial_id).state is TrialState.RUNNING
    assert len(records.events()) == 2


def test_unknown_event_kinds_are_skipped(records: Records) -> None:
    report = ("training", {"steps_completed": 1, "metrics": {"loss": 0.5}})
    records.add(("of_a_later_release", {"x": 1}), started(uuid="../x"), started(), report)
    assert [kind for kind, _ in records.events()] == ["of_a_later_release", "checkpoint_started"]
    assert records.checkpoint().state == "ACTIVE"
    assert len(records.database.metrics(records.trial_ids[0], "training")) == 1


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers()
    | st.just(10**400) | st.just(UUID) | st.sampled_from(["ERROR", "../x", "", "\0", "x" * 999]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
_FIELDS = (
    "uuid",
    "storage_url",
    "steps_completed",
    "metadata",
    "resources",
    "state",
    "error",
)
_PAYLOAD = _JSON | st.dictionaries(st.sampled_from(_FIELDS), _JSON)


_RECORD = st.tuples(
    st.sampled_from(KINDS),
    st.sampled_from([started, committed, deleted, failed]),
    st.sampled_from(_FIELDS),
    _JSON,
    _PAYLOAD,
)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(made=st.lists(_RECORD, min_size=10, max_size=30))
def test_invalid_payloads_are_skipped(tmp_path: Path, made: list[Any]) -> None:
    home = tmp_path / f"{time.monotonic_ns()}"
    home.mkdir()
    records = Records(home)
    hostile = []
    for kind, template, field, value, payload in made:
        _, schema = template()
        hostile += [(kind, payload), (kind, {**schema, field: value})]
    report = ("training", {"steps_completed": 1, "metrics": {"loss": 0.5}})
    records.add(started(), *hostile, report)
    assert len(records.database.metrics(records.trial_ids[0], "training")) == 1
    for checkpoint in records.database.list_checkpoints():  # all can be read
        assert checkpoint.trial_id == records.trial_ids[0]
    kinds = {event.kind for event in records.database.events(records.trial_ids[0])}
    assert kinds <= {*KINDS}
    records.database.close()
