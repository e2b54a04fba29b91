"""Seeded faults: how many are found at their step, by kind and tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import Fault, draw_fault, list_batches
from forked_runs import make_run
from found_faults import MODES, NO_DIGESTS, check_faults, compare, score

from detcore_replay.recorded_runs import Run

SHORT, LONG = 200, 1000
SAMPLE = ("record order", "record content", "random draw", "thread count")
# In pieces, each of which a test has the time for.
NUM_FAULTS, PIECE = 100, 20
NUM_CONTROLS = 20


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("base") / "base", Fault("none", 0), SHORT)


@pytest.mark.parametrize("kind", SAMPLE)
def test_a_fault_is_found_at_its_step_by_kind_and_tensor(
    base: Run, kind: str, tmp_path: Path
) -> None:
    fault = draw_fault(kind, 5, list_batches(7, SHORT))
    found = compare(base, make_run(tmp_path / "other", fault, SHORT), tmp_path)
    assert score(fault, found) == (True, True, True), (fault, found)
    assert found.found is not None
    assert found.found.is_exact
    assert (found.num_replays, found.notes) == (2, ())
    if fault.kind not in ("record order", "random draw"):
        assert found.found.largest is not None


def test_a_fault_is_found_without_digests(tmp_path: Path) -> None:
    fault = draw_fault("operation", 5, list_batches(7, SHORT))
    one, other = (
        make_run(tmp_path / str(index), each, SHORT, **NO_DIGESTS)
        for index, each in enumerate((Fault("none", 0), fault))
    )
    found = compare(one, other, tmp_path)
    assert score(fault, found) == (True, True, True), (fault, found)
    assert found.num_replays == 4  # the first two do not save the tensors of every step


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, NUM_FAULTS, PIECE))
@pytest.mark.parametrize("mode", MODES)
def test_of_a_hundred_faults_the_step_kind_and_tensor_are_found(
    mode: str, first: int, tmp_path: Path
) -> None:
    check_faults(list_batches(7, LONG), mode, range(first, first + PIECE), tmp_path)


def test_equal_runs_are_reported_equal(base: Run, tmp_path: Path) -> None:
    check_control(base, tmp_path, SHORT, 70)


@pytest.mark.soak
def test_twenty_pairs_of_equal_runs_are_reported_equal(tmp_path: Path) -> None:
    base = make_run(tmp_path / "base", Fault("none", 0), LONG)
    for number in range(NUM_CONTROLS):
        check_control(base, tmp_path / str(number), LONG, 50 + 10 * number)


def check_control(base: Run, folder: Path, num_steps: int, unit: int) -> None:
    """Compare with an equal run of other scheduling units, which change nothing."""
    folder.mkdir(exist_ok=True)
    other = make_run(folder / "other", Fault("none", 0), num_steps, scheduling_unit=unit)
    found = compare(base, other, folder)
    assert found.is_equal, found
    assert found.compared_to == num_steps
    assert (found.num_replays, found.notes) == (0, ())
    names = {name for name, _, _ in found.settings}
    assert names <= {"scheduling_unit"}, found.settings  # 100 is the base's
