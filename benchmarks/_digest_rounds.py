"""Train one trial with and without step digests, in turns. Used by the digest benchmarks."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _report import with_quartiles
from _trial_setup import BenchmarkClock, make_setup

from detcore.data import LedgerWriter, StepDigests
from detcore.trial import TrialSetup

__all__ = [
    "BATCH",
    "HEADS",
    "UNIT_STEPS",
    "VARIANTS",
    "WIDTHS",
    "DigestClock",
    "Trial",
    "make_trial_setup",
    "measure_rounds",
]

UNIT_STEPS = 100
BATCH = 32
# Hidden units of a small model, and of a model with a step of realistic duration.
WIDTHS = {"digits": 32, "1,024 hidden units": 1024}
HEADS = ["variant", "CPU us/step", "added, us", "CPU ratio [q1, q3]"]
# Digest period of each variant. 0 = no digests.
VARIANTS = {
    "without": 0, "null control: without again": 0, "every tenth step (default)": 10,
    "every step": 1,
}  # fmt: skip


def make_trial_setup(folder: Path, width: int) -> TrialSetup:
    """Return the setup of a trial with a hyperparameter ``width``."""
    plain = make_setup(folder, BATCH)
    hparams = {**plain.hparams, "width": width}
    return TrialSetup(config={}, hparams=hparams, seed=1, distributed=plain.distributed)


class DigestClock(BenchmarkClock):
    """Ends a turn after some steps, and digests after each unit like detcore's clock."""

    ledger: LedgerWriter | None = None

    def __init__(self, digests: StepDigests | None) -> None:
        super().__init__(UNIT_STEPS)
        self.digests = digests
        self.stop = 0
        self._others_steps = 0

    def begin(self, start: int, steps: int) -> None:
        """Start a turn of some steps, counted from the steps of all variants."""
        self._others_steps += start - self.stop
        self.stop = start + steps
        self.next_boundary = start + UNIT_STEPS

    def boundary(
        self,
        steps_completed: int,
        training_metrics: Any,
        batch_metrics: Sequence[Mapping[str, float]] | None = None,
        *,
        n_records: int | None = None,
    ) -> bool:
        if self.digests is not None:
            self.digests.log_metrics(steps_completed, batch_metrics or ())
            # Digest as often as if this variant trained alone.
            self.digests.log_state(steps_completed - self._others_steps)
            self.digests.flush()
        return super().boundary(steps_completed, training_metrics, batch_metrics)

    def at_boundary(self, steps: int) -> bool:
        return steps < self.stop


class Trial:
    """A trial that trains in turns, each with another clock.

    All variants share the tensors, because their location in memory changes times by 5 %.

    Args:
        controller: Controller of the trial.
        use: Sets the clock of the controller.
    """

    def __init__(self, controller: Any, use: Callable[[Any], None]) -> None:
        self._controller = controller
        self._use = use
        self._steps = 0

    def digests_turn(self, folder: Path, every: int) -> Callable[[int], float]:
        """Return a `turn` that writes digests with a period into a directory. 0 = no digests."""
        digests = None
        if every:
            path = folder / "digests-1.bin"
            digests = StepDigests(path, run_id=1, start_step=0, every=every)
        return self.turn(DigestClock(digests))

    def turn(self, clock: DigestClock) -> Callable[[int], float]:
        """Return a function that trains some steps with a clock, and returns the CPU seconds."""
        if clock.digests is not None:
            clock.digests.watch(self._controller.state_tensors)

        def train(steps: int) -> float:
            self._use(clock)
            clock.begin(self._steps, steps)
            self._steps += steps
            began = time.process_time()
            self._controller.run(clock)
            return time.process_time() - began

        return train


def measure_rounds(
    label: str, turns: Mapping[str, Callable[[int], float]], *, rounds: int, steps: int
) -> list[list[str]]:
    """Let variants take turns in a random order; return a row for each.

    Args:
        label: Name of the model in the table.
        turns: For each variant, a function that trains some steps and returns the CPU seconds.
        rounds: Number of turns of each variant.
        steps: Number of steps in a turn.
    """
    names = list(turns)
    for turn in turns.values():
        turn(UNIT_STEPS)
    times: dict[str, list[float]] = {variant: [] for variant in names}
    for _ in range(rounds):
        for variant in random.sample(names, len(names)):
            times[variant].append(turns[variant](steps) / steps * 1e6)
    rows = []
    for variant in names:
        pairs = list(zip(times[variant], times[names[0]], strict=True))
        added = statistics.median(value - base for value, base in pairs)
        ratios = [value / base for value, base in pairs]
        median = statistics.median(times[variant])
        rows.append(
            [f"{label}, {variant}", f"{median:.1f}", f"{added:.1f}", with_quartiles(ratios, 3)]
        )
    return rows
