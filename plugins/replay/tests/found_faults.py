"""Compare trials with a seeded fault with a correct trial."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from faults import FAULTS, Fault, draw_fault
from forked_runs import ForkedReplayer, make_run

from detcore_replay.diverge.first_difference import Divergence, find_divergence
from detcore_replay.recorded_runs import Run

__all__ = ["MODES", "NO_DIGESTS", "check_faults", "compare", "score"]

NO_DIGESTS: dict[str, object] = {"reproducibility": {"experiment_seed": 7, "step_digests": 0}}
# Digest settings of the trials.
MODES: dict[str, dict[str, object]] = {
    "every step": {},
    "every tenth step": {"reproducibility": {"experiment_seed": 7}},
    "none": NO_DIGESTS,
}


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


def check_faults(
    batches: list[list[int]], mode: str, seeds: range, folder: Path, *, is_torch: bool = False
) -> None:
    """Compare a trial with faulty trials; print and check the number of detected faults."""
    totals = [0, 0, 0]
    wrong = []
    settings = MODES[mode]
    none = Fault("none", 0, is_torch=is_torch)
    one = make_run(folder / "base", none, len(batches), **settings)
    # Without digests, a run does not record its environment variables.
    kinds = [kind for kind in FAULTS if kind != "thread count" or mode != "none"]
    for seed in seeds:
        fault = draw_fault(kinds[seed % len(kinds)], seed, batches, is_torch=is_torch)
        place = folder / str(seed)
        result = compare(one, make_run(place / "other", fault, len(batches), **settings), place)
        right = score(fault, result)
        totals = [total + count for total, count in zip(totals, right, strict=True)]
        if not all(right):
            wrong.append((fault, result.found, result.notes))
        shutil.rmtree(place)
    print(f"of {len(seeds)} faults: step {totals[0]}, kind {totals[1]}, tensor {totals[2]}")
    assert totals[0] == len(seeds), wrong
    assert totals[1] >= 0.95 * len(seeds), wrong
    assert totals[2] >= 0.9 * len(seeds), wrong
