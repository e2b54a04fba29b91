"""Variables of users' functions survive a restart: the same code, executed again, continues."""

from __future__ import annotations

import json
import random
import sys
import types
from typing import Any

import numpy as np
import pytest

from detcore.trial import FunctionTracker, list_function_variables

SCRIPT = """
import functools
import json
import random

import numpy as np

calls = 0
history = []
best = None
generator = random.Random(1)
data = np.zeros(5)


class State:
    def __init__(self):
        self.level = 1.0


state = State()


def count():
    global calls
    calls += 1


def make_loss(rate):
    def decay():
        nonlocal rate
        rate *= 0.5

    def loss(value):
        global best
        count()
        decay()
        [history.append(round(value * rate + generator.random(), 6)) for _ in range(1)]
        best = min(history)
        state.level += rate
        return json.dumps([calls, rate, history, best, state.level, data.sum()])

    return loss


class Callback:
    def on_step(self, value):
        return functools.partial(self.loss, value)()


callback = Callback()
callback.loss = make_loss(1.0)
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that executes the script as a new process would."""

    def execute() -> types.ModuleType:
        module = types.ModuleType("script_of_a_user")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(SCRIPT, vars(module))
        return module

    return execute


def test_variables_of_functions_are_restored(script: Any) -> None:
    uninterrupted = script().callback
    expected = [uninterrupted.on_step(step) for step in range(6)]
    first = script().callback
    tracker = FunctionTracker({"callback": first})
    assert [first.on_step(step) for step in range(3)] == expected[:3]
    state = tracker.capture()
    assert "callback/loss/data" not in state
    later = script().callback
    FunctionTracker({"callback": later}).restore(state)
    assert [later.on_step(step) for step in range(3, 6)] == expected[3:]


def test_variable_created_by_function_is_restored() -> None:
    names: dict[str, Any] = {}
    code = "def function():\n    global total\n    total = 3\n    return total"
    exec(code, names)
    tracker = FunctionTracker({"f": names["function"]})
    names["function"]()
    state = tracker.capture()
    assert state == {"f/total": 3}
    other_globals: dict[str, Any] = {}
    exec(code, other_globals)
    FunctionTracker({"f": other_globals["function"]}).restore(state)
    assert other_globals["total"] == 3


def test_installed_packages_are_not_searched() -> None:
    installed, own_array = random.Random(), np.zeros(1)

    def function() -> Any:
        return pytest.approx(own_array), installed, json.dumps

    names = dict(list_function_variables({"f": function}))
    assert names.keys() == {"f/own_array", "f/installed"}
    assert not dict(list_function_variables({"json": json.dumps, "tracker": FunctionTracker({})}))


def test_objects_of_installed_classes_are_not_saved() -> None:
    encoder = json.JSONEncoder()

    def function() -> None:
        encoder.indent = 3

    tracker = FunctionTracker({"f": function}, prefix="")
    function()
    assert tracker.capture() == {}
    assert tracker.list_changed() == []


def test_unsaved_change_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    lock = object()

    def function() -> None:
        nonlocal lock
        lock = object()

    tracker = FunctionTracker({"loss": function}, prefix="")
    function()
    tracker.capture()
    tracker.capture()
    (message,) = caplog.messages
    assert "training has changed loss/lock, which a checkpoint cannot hold" in message


def test_missing_function_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    FunctionTracker({}).restore({"loss/weight": 2})
    assert "no function refers to loss/weight" in caplog.text


class Average:
    """Refers to an object that cannot be saved."""

    def __init__(self) -> None:
        self.model = object()
        self.total = 0.0


def train(
    start: int, stop: int, saved: dict[str, Any] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Train from one step to another; return the result and the state to continue from."""
    weight, history, average = 1.0, [np.zeros(1)], Average()
    generator = random.Random(1)

    def decay() -> None:
        nonlocal weight
        weight *= 0.5

    tracker = track(sys._getframe())
    tracker.restore(saved or {})
    for step in range(start, stop):
        decay()
        average.total += weight * step
        history.append(np.array([generator.random()]))
    state = tracker.capture()
    return (weight, average.total, history, generator.random()), state


def track(frame: types.FrameType) -> FunctionTracker:
    return FunctionTracker({}, frame=frame, prefix="")


def test_variables_of_running_function_are_restored(caplog: pytest.LogCaptureFixture) -> None:
    expected, _ = train(0, 6)
    _, state = train(0, 3)
    assert state.keys() == {
        "loop/weight",
        "loop/history",
        "loop/average.total",
        "loop/generator",
        "decay/weight",
    }
    assert train(3, 6, state)[0] == expected
    assert not caplog.messages


def test_variables_of_running_script_are_restored() -> None:
    code = compile(
        "total, steps = 0, []\n"
        "tracker = track(sys._getframe())\n"
        "tracker.restore(saved)\n"
        "for step in range(len(steps), stop):\n"
        "    total += step\n"
        "    steps.append(step)\n",
        "train.py",
        "exec",
    )  # fmt: skip

    def run(stop: int, saved: dict[str, Any]) -> dict[str, Any]:
        names = {"__name__": "train", "track": track, "sys": sys, "saved": saved, "stop": stop}
        exec(code, names)
        return names

    state = run(3, {})["tracker"].capture()
    assert state == {"loop/total": 3, "loop/steps": [0, 1, 2]}
    assert run(6, state)["total"] == run(6, {})["total"] == 15
