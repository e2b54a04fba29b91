"""The random generators' state goes through JSON and comes back bit for bit."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from detcore.errors import InvalidCheckpointError
from detcore.trial import capture_random_state, preserve_random_state, restore_random_state


@pytest.fixture(autouse=True)
def _left_alone() -> Iterator[None]:
    with preserve_random_state():
        yield


def draw() -> list[float]:
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.normal()),
        float(np.random.rand()),
        float(np.random.randint(1 << 30)),
    ]


@pytest.mark.parametrize("warm_up", [0, 1, 700])
def test_random_state_is_restored(warm_up: int) -> None:
    random.seed(5)
    np.random.seed(5)
    for _ in range(warm_up):
        draw()
    # Both keep one half of a pair of normal numbers.
    random.gauss(0, 1)
    np.random.normal()
    text = json.dumps(capture_random_state())
    expected = [draw() for _ in range(3)]
    random.seed(99)
    np.random.seed(99)
    restore_random_state(json.loads(text))
    assert [draw() for _ in range(3)] == expected


def test_capture_keeps_random_state() -> None:
    before = capture_random_state()
    assert capture_random_state() == before


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.Philox, np.random.SFC64])
def test_other_numpy_generators_are_restored(kind: Any) -> None:
    numpy_random: Any = np.random  # its types do not know these two functions
    usual = numpy_random.get_bit_generator()
    numpy_random.set_bit_generator(kind(3))
    try:
        np.random.rand(3)
        text = json.dumps(capture_random_state())
        expected = draw()
        np.random.rand(3)
        restore_random_state(json.loads(text))
        assert draw() == expected
    finally:
        numpy_random.set_bit_generator(usual)
    before = draw_state()
    with pytest.raises(InvalidCheckpointError, match="random generators cannot be used"):
        restore_random_state(json.loads(text))
    assert draw_state() == before


def draw_state() -> str:
    return json.dumps(capture_random_state())


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("numpy"),
        lambda state: state.pop("python"),
        lambda state: state["python"][1].pop(),
        lambda state: state["numpy"]["state"]["key"]["values"].pop(),
        lambda state: state["numpy"]["state"]["key"].update(values=["x"]),
        lambda state: state["numpy"]["state"]["key"].update(values=[-1] * 624),
        lambda state: state.update(python=3),
    ],
)
def test_damaged_random_state_changes_nothing(damage: Any) -> None:
    random.seed(1)
    state: Any = capture_random_state()
    draw()
    damage(state)
    before = draw_state()
    with pytest.raises(InvalidCheckpointError, match="random generators cannot be used"):
        restore_random_state(state)
    assert draw_state() == before


def test_random_state_is_preserved_after_error() -> None:
    before = draw_state()
    with pytest.raises(KeyError), preserve_random_state():  # noqa: PT012
        draw()
        raise KeyError
    assert draw_state() == before
