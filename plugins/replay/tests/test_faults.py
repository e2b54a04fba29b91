"""Seeded faults: how many are found at their step, by kind and tensor."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
from faults import FAULTS, Fault, draw_fault, list_batches, list_torch_batches
from forked_runs import ForkedReplayer, make_run

from detcore_replay._diverge import Divergence, find_divergence
from detcore_replay._runs import Run

SHORT, LONG = 200, 1000
SAMPLE = ("record order", "record content", "random draw", "thread count")
NO_DIGESTS: dict[str, object] = {"reproducibility": {"experiment_seed": 7, "step_digests": 0}}
# The digests that the trials store.
MODES: dict[str, dict[str, object]] = {
    "every step": {},
    "every tenth step": {"reproducibility": {"experiment_seed": 7}},
    "none": NO_DIGESTS,
}
# In pieces, each of which a test has the time for.
NUM_FAULTS, PIECE = 100, 20
NUM_TORCH_FAULTS, TORCH_PIECE = 40, 2
NUM_CONTROLS = 20


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("base") / "base", Fault("none", 0), SHORT)


def compare(one: Run, other: Run, folder: Path) -> Divergence:
    with contextlib.closing(ForkedReplayer(folder, folder / "scratch")) as replayer:
        return find_divergence(one, other, replayer, replay=True)


def score(fault: Fault, found: Divergence) -> tuple[bool, bool, bool]:
    """Return whether step, kind (and setting) and tensor are right."""
    first = found.found
    if first is None:
        return False, False, False
    step, kind, tensor = fault.answer
    names = [name for name, _, _ in found.settings]
    is_named = fault.setting is None or fault.setting in names
    return first.step == step, first.kind == kind and is_named, first.tensor == tensor


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


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, NUM_TORCH_FAULTS, TORCH_PIECE))
@pytest.mark.parametrize("mode", MODES)
def test_faults_in_a_model_of_three_layers_are_found(
    mode: str, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)  # the processes are forked
    batches = list_torch_batches(LONG)
    check_faults(batches, mode, range(first, first + TORCH_PIECE), tmp_path, is_torch=True)


def check_faults(
    batches: list[list[int]], mode: str, seeds: range, folder: Path, *, is_torch: bool = False
) -> None:
    """Compare a trial with others that have a fault; print and check how many are found."""
    totals = [0, 0, 0]
    wrong = []
    settings = MODES[mode]
    none = Fault("none", 0, is_torch=is_torch)
    one = make_run(folder / "base", none, len(batches), **settings)
    # Without digests, a run does not say what its variables were.
    kinds = [kind for kind in FAULTS if kind != "thread count" or mode != "none"]
    for seed in seeds:
        fault = draw_fault(kinds[seed % len(kinds)], seed, batches, is_torch=is_torch)
        place = folder / str(seed)
        found = compare(one, make_run(place / "other", fault, len(batches), **settings), place)
        right = score(fault, found)
        totals = [total + each for total, each in zip(totals, right, strict=True)]
        if not all(right):
            wrong.append((fault, found.found, found.notes))
        shutil.rmtree(place)
    print(f"of {len(seeds)} faults: step {totals[0]}, kind {totals[1]}, tensor {totals[2]}")
    assert totals[0] == len(seeds), wrong
    assert totals[1] >= 0.95 * len(seeds), wrong
    assert totals[2] >= 0.9 * len(seeds), wrong


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
