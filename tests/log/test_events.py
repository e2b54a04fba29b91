"""The codec of a trial's log decodes exactly the events that it encodes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detcore.log import events

UUID = "3f2a0c1e-0000-4000-8000-000000000001"
EXAMPLES: list[events.Event] = [
    events.TrialStarted(run_id=3),
    events.TrainingReport(
        steps_completed=5, metrics={"loss": 0.5}, batch_metrics=[{"loss": 1.0}], n_records=40
    ),
    events.ValidationReport(steps_completed=5, metrics={"val_loss": 0.25}),
    events.CheckpointStarted(uuid=UUID, storage_url="file:///s", steps_completed=5),
    events.CheckpointCommitted(
        uuid=UUID, steps_completed=5, metadata={"a": [1]}, resources={"w": 3}, url="file:///s/3",
        path="/s/3", size_bytes=3, stalled_s=0.25, total_s=1,
    ),
    events.CheckpointDeleting(uuid=UUID),
    events.CheckpointDeleted(uuid=UUID, resources={}),
    events.CheckpointDamaged(uuid=UUID),
    events.ResumeCompared(
        start_step=4, last_step=9, num_compared=5,
        difference={"step": 6, "kind": "loss", "tensors": ["model.weight"]},
    ),
    events.TrialFailed(error="INVALID_HP"),
    events.TrialFinished(state="COMPLETED"),
]  # fmt: skip


def test_examples_cover_every_event() -> None:
    assert [type(example) for example in EXAMPLES] == list(get_args(events.Event))
    kinds = [example.KIND for example in EXAMPLES]
    assert len({*kinds}) == len(kinds)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.KIND)
def test_event_survives_encoding(event: events.Event) -> None:
    payload = json.loads(json.dumps(events.encode_event(event)))
    assert events.decode_event(event.KIND, payload) == event
    assert events.decode_event(event.KIND, {**payload, "of_a_later_release": 1}) == event


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.KIND)
def test_decode_returns_none_for_invalid_fields(event: events.Event) -> None:
    payload = events.encode_event(event)
    for field in dataclasses.fields(event):
        assert events.decode_event(event.KIND, {**payload, field.name: object()}) is None, (
            field.name
        )
        if field.default is dataclasses.MISSING:
            remaining = {name: value for name, value in payload.items() if name != field.name}
            assert events.decode_event(event.KIND, remaining) is None, field.name


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("checkpoint_started", {"uuid": "../x"}),
        ("checkpoint_started", {"uuid": ""}),
        ("checkpoint_started", {"storage_url": "x" * 4097}),
        ("checkpoint_started", {"steps_completed": -1}),
        ("checkpoint_started", {"steps_completed": True}),
        ("checkpoint_committed", {"resources": {"w": -1}}),
        ("checkpoint_committed", {"resources": {"w": 2**63}}),
        ("trial_state", {"state": "COMPLETED"}),
        ("training", {"batch_metrics": [1]}),
        ("training", {"steps_completed": 2**63}),
    ],
)
def test_decode_rejects_values_beyond_limits(kind: str, changed: Any) -> None:
    [payload] = [events.encode_event(event) for event in EXAMPLES if kind == event.KIND]
    assert events.decode_event(kind, {**payload, **changed}) is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers() | st.just(UUID),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = sorted({field.name for example in EXAMPLES for field in dataclasses.fields(example)})


@given(
    kind=st.sampled_from([example.KIND for example in EXAMPLES]) | st.text(),
    payload=_JSON | st.dictionaries(st.sampled_from(_FIELDS), _JSON),
)
def test_decode_never_raises(kind: str, payload: Any) -> None:
    event = events.decode_event(kind, payload)
    if event is not None and "nan" not in str(event):
        assert events.decode_event(kind, events.encode_event(event)) == event
