"""Attributes of users' objects survive a restart: a new object of the same code continues."""

from __future__ import annotations

import collections
import json
import queue
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detcore.distributed import DistributedContext
from detcore.errors import InvalidCheckpointError
from detcore.trial import AttributeTracker


class Meter:
    def __init__(self) -> None:
        self.total = 0.0
        self.values: list[float] = []


class Stateful:
    def __init__(self) -> None:
        self._count = 0
        self._lock = object()

    def state_dict(self) -> dict[str, int]:
        return {"count": self._count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._count = state["count"]


class Callback:
    def __init__(self) -> None:
        self.patience = 3
        self.model = object()
        self.lock = object()
        self.wait = 0
        self.best = np.float32(np.inf)
        self.average = np.zeros(3)
        self.history: dict[str, list[float]] = collections.defaultdict(list)
        self.window: collections.deque[int] = collections.deque(maxlen=2)
        self.meter = Meter()
        self.stateful = Stateful()
        self.random = random.Random()
        self.generator = np.random.default_rng()
        self.legacy = np.random.RandomState()
        self.path: Path | None = None

    def train(self) -> list[float]:
        self.wait += 1
        self.best = np.float32(0.5)
        self.average += 1
        self.history["loss"].append(0.25)
        self.window.append(self.wait)
        self.meter.total += 1.5
        self.meter.values.append(2.0)
        self.stateful._count += 1
        self.path = Path("best")
        self.later = {"$set": {1, 2}, 3: (b"x", bytearray(b"y"), None, True)}
        draws = [self.random.random(), self.generator.random(), float(self.legacy.rand())]
        return [*draws, self.wait, *self.average, self.meter.total, self.stateful._count]


def track(target: object) -> AttributeTracker:
    return AttributeTracker(target, ignored={"model"})


def restart(values: dict[str, Any]) -> Callback:
    callback = Callback()
    track(callback).restore(values)
    return callback


def test_tracker_restores_what_training_changed() -> None:
    callback = Callback()
    tracker = track(callback)
    callback.train()
    callback.train()
    values = tracker.capture()
    restored = restart(values)
    assert restored.train() == callback.train()
    for name in ("best", "history", "window", "path", "later"):
        assert getattr(restored, name) == getattr(callback, name)
        assert type(getattr(restored, name)) is type(getattr(callback, name))
    assert restored.window.maxlen == 2
    assert vars(restored.meter) == vars(callback.meter)
    assert tracker.list_changed() == []


def test_tracker_keeps_new_settings() -> None:
    callback = Callback()
    tracker = track(callback)
    callback.train()
    values = tracker.capture()
    assert "patience" not in values
    assert "model" not in values
    renewed = Callback()
    renewed.patience = 7
    track(renewed).restore(values)
    assert renewed.patience == 7


def test_unchanged_attributes_undo_training() -> None:
    callback = Callback()
    tracker = AttributeTracker(callback, names=["wait", "average"])
    before = tracker.capture(include_unchanged=True)
    assert before.keys() == {"wait", "average"}
    assert tracker.capture() == {}
    callback.train()
    assert tracker.capture().keys() == {"wait", "average"}
    tracker.restore(before)
    assert (callback.wait, callback.average.tolist()) == (0, [0, 0, 0])
    assert callback.best == 0.5


def test_unused_generators_are_saved() -> None:
    callback = Callback()
    values = track(callback).capture()
    assert set(values) == {"random", "generator", "legacy"}
    assert restart(values).generator.random() == callback.generator.random()


def test_captured_values_are_copies() -> None:
    callback = Callback()
    tracker = track(callback)
    callback.train()
    values = tracker.capture()
    callback.train()
    assert list(values["average"]) == [1, 1, 1]
    assert values["wait"] == 1


def test_containers_are_restored_in_place() -> None:
    callback = Callback()
    tracker = track(callback)
    callback.train()
    renewed = Callback()
    renewed_tracker = track(renewed)
    average, history, meter = renewed.average, renewed.history, renewed.meter
    renewed_tracker.restore(tracker.capture())
    assert renewed.average is average
    assert renewed.history is history
    assert renewed.meter is meter
    assert list(average) == [1, 1, 1]


def test_shared_list_may_be_split() -> None:
    class Pair:
        def __init__(self) -> None:
            self.best = self.latest = [0]

    pair = Pair()
    tracker = track(pair)
    pair.best, pair.latest = [1], [2]
    renewed = Pair()
    track(renewed).restore(tracker.capture())
    assert (renewed.best, renewed.latest) == ([1], [2])


@pytest.mark.parametrize(
    "change",
    [
        lambda callback: setattr(callback, "lock", object()),
        lambda callback: setattr(callback, "lock", lambda: None),
        lambda callback: setattr(callback.meter, "file", object()),
        lambda callback: setattr(callback, "newer", Meter()),
        lambda callback: callback.history["loss"].append(object()),
        lambda callback: setattr(callback, "loop", _make_loop()),
        lambda callback: setattr(callback, "text", np.array(["a"])),
    ],
)
def test_changes_that_cannot_be_saved_are_listed(change: Callable[[Any], None]) -> None:
    callback = Callback()
    tracker = track(callback)
    assert tracker.list_changed() == []
    change(callback)
    (name,) = tracker.list_changed()
    assert name in ("lock", "meter", "newer", "history", "loop", "text")
    assert name not in tracker.capture()


def _make_loop() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def test_objects_created_by_start_hook_are_restored() -> None:
    class Starting:
        meter: Meter | None = None
        optimizer: object = None

        def start(self) -> AttributeTracker:
            tracker = track(self)
            self.meter, self.optimizer = Meter(), Stateful()
            tracker.note_objects(ignored_objects=[self.optimizer])
            return tracker

    callback, restored = Starting(), Starting()
    tracker = callback.start()
    assert callback.meter is not None
    callback.meter.total = 2.0
    values = tracker.capture()
    restored.start().restore(values)
    assert values.keys() == {"meter"}
    assert restored.meter is not None
    assert restored.meter.total == 2.0
    assert tracker.list_changed() == []


def test_ignored_objects_are_skipped() -> None:
    callback = Callback()
    tracker = AttributeTracker(callback, ignored_objects=[callback.stateful, callback.meter])
    callback.train()
    assert not {"stateful", "meter"} & set(tracker.capture())
    assert "meter" not in tracker.list_changed()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("meter", 3),
        ("stateful", None),
        ("generator", Meter()),
        ("random", np.random.default_rng()),
    ],
)
def test_state_without_object_is_an_error(name: str, value: object) -> None:
    callback = Callback()
    tracker = track(callback)
    callback.train()
    renewed = Callback()
    setattr(renewed, name, value)
    with pytest.raises(InvalidCheckpointError, match=f"attribute {name} of Callback"):
        track(renewed).restore(tracker.capture())


@pytest.mark.parametrize(
    "saved",
    [{"$unknown": 1}, {"$tuple": 3}, {"$deque": []}, {"$generator": {"state": 1}}, {"$bytes": [1]}],
)
def test_damaged_values_are_errors(saved: object) -> None:
    with pytest.raises(InvalidCheckpointError, match="cannot be restored"):
        track(Callback()).restore({"generator": saved})


def test_small_values_go_through_json() -> None:
    callback = Callback()
    tracker = track(callback)
    callback.train()
    values = {name: tracker.capture()[name] for name in ("history", "window", "later", "path")}
    assert json.loads(json.dumps(values)) == values


def test_equal_sets_are_unchanged() -> None:
    class Names:
        def __init__(self, *names: str) -> None:
            self.names = set(names)

    names = Names("b", "a", "c")
    tracker = track(names)
    names.names = set()
    for name in ("c", "a", "b"):
        names.names.add(name)
    assert tracker.capture() == {}


@pytest.mark.parametrize(
    ("value", "use"),
    [
        (threading.Event(), threading.Event.set),
        (queue.Queue(), lambda value: value.put(1)),
        (DistributedContext(), lambda value: setattr(value, "note", 1)),
    ],
)
def test_thread_objects_are_not_saved(value: object, use: Callable[..., None]) -> None:
    callback = Callback()
    callback.value = value  # type: ignore[attr-defined]  # of this test
    tracker = track(callback)
    use(value)
    assert "value" not in [*tracker.list_changed(), *tracker.capture()]


@pytest.mark.parametrize("kind", [collections.deque, dict])
def test_container_may_change_during_capture(kind: type) -> None:
    """A thread of the user's may do so at any time; here the state of an item does."""

    class Grows:
        def state_dict(self) -> dict[str, int]:
            grow(len(items))
            return {}

        def load_state_dict(self, state: dict[str, int]) -> None: ...

    class Holder:
        def __init__(self) -> None:
            self.items = items

    items: Any = {0: Grows()} if kind is dict else kind([Grows()])

    def grow(length: int) -> None:
        if kind is dict:
            items[length] = length
        else:
            items.append(length)

    captured = AttributeTracker(Holder()).capture()
    assert list(captured) == ["items"]
