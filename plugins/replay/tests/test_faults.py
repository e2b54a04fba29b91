"""Detection of seeded faults: step, kind and tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import Fault, draw_fault, list_batches
from forked_runs import make_run
from found_faults import MODES, NO_DIGESTS, check_faults, compare, score

from detcore_replay.recorded_runs import Run

SHORT, LONG = 200, 1000
SAMPLE = ("record order", "record content", "random draw", "thread count")
# Split into parts that fit the time limit of a test.
NUM_FAULTS, PIECE = 100, 20
NUM_CONTROLS = 20


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("base") / "base", Fault("none", 0), SHORT)


@pytest.mark.parametrize("kind", SAMPLE)
def test_fault_is_found_by_step_kind_and_tensor(base: Run, kind: str, tmp_path: Path) -> None:
    fault = draw_fault(kind, 5, list_batches(7, SHORT))
    result = compare(base, make_run(tmp_path / "other", fault, SHORT), tmp_path)
    assert score(fault, result) == (True, True, True), (fault, result)
    assert result.found is not None
    assert result.found.is_exact
    assert (result.num_replays, result.notes) == (2, ())
    if fault.kind not in ("record order", "random draw"):
        assert result.found.largest is not None


def test_fault_is_found_without_digests(tmp_path: Path) -> None:
    fault = draw_fault("operation", 5, list_batches(7, SHORT))
    one, other = (
        make_run(tmp_path / str(index), trial_fault, SHORT, **NO_DIGESTS)
        for index, trial_fault in enumerate((Fault("none", 0), fault))
    )
    result = compare(one, other, tmp_path)
    assert score(fault, result) == (True, True, True), (fault, result)
    assert result.num_replays == 4  # the first two replays do not save the tensors of every step


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, NUM_FAULTS, PIECE))
@pytest.mark.parametrize("mode", MODES)
def test_hundred_faults_are_found(mode: str, first: int, tmp_path: Path) -> None:
    check_faults(list_batches(7, LONG), mode, range(first, first + PIECE), tmp_path)


def test_equal_runs_are_reported_equal(base: Run, tmp_path: Path) -> None:
    check_control(base, tmp_path, SHORT, 70)


@pytest.mark.soak
def test_twenty_pairs_of_runs_are_equal(tmp_path: Path) -> None:
    base = make_run(tmp_path / "base", Fault("none", 0), LONG)
    for number in range(NUM_CONTROLS):
        check_control(base, tmp_path / str(number), LONG, 50 + 10 * number)


def check_control(base: Run, folder: Path, num_steps: int, unit: int) -> None:
    """Compare with an equal run that has other scheduling units."""
    folder.mkdir(exist_ok=True)
    other = make_run(folder / "other", Fault("none", 0), num_steps, scheduling_unit=unit)
    result = compare(base, other, folder)
    assert result.is_equal, result
    assert result.compared_to == num_steps
    assert (result.num_replays, result.notes) == (0, ())
    names = {name for name, _, _ in result.settings}
    assert names <= {"scheduling_unit"}, result.settings  # the reference has 100
