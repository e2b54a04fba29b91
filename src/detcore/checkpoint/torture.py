"""Stopping a process at every operation of what it does to checkpoints, and restoring each time."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.checkpoint._bench import Bench, Process, make_bench
from detcore.checkpoint._crash import CrashPoint, Fuse, Moment, Operation
from detcore.checkpoint._scenarios import SCENARIOS, Scenario, find_fault

if TYPE_CHECKING:
    from detcore.database import Database
    from detcore.storage import StorageBackend

__all__ = [
    "SCENARIO_NAMES",
    "CrashPoint",
    "Loss",
    "Moment",
    "TortureReport",
    "spread",
    "torture_storage",
]

SCENARIO_NAMES = tuple(SCENARIOS)
"""What processes are stopped in."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """A crash after which something was not as it should be."""

    scenario: str
    point: str
    operation: str
    what: str

    def __str__(self) -> str:
        return f"{self.scenario}, {self.point} ({self.operation}): {self.what}"


@dataclasses.dataclass(frozen=True, slots=True)
class TortureReport:
    """What came out.

    Attributes:
        points: Crash points tried, by scenario.
        totals: Crash points that there are, by scenario.
        losses: What was lost or left; empty if all is well.
    """

    points: dict[str, int]
    totals: dict[str, int]
    losses: tuple[Loss, ...]


def torture_storage(
    storage: StorageBackend,
    *,
    points: int | None = None,
    scenarios: Sequence[str] = SCENARIO_NAMES,
    most_losses: int | None = None,
    on_point: Callable[[str, CrashPoint], None] | None = None,
) -> TortureReport:
    """Stop processes at each of their operations, one by one: before, within and after it.

    They save (in every way), delete, delete a part, make a retention pass, register a model's
    version, settle what others left, and repair. At once, whatever counts as a checkpoint must be
    whole. Then a new process settles what is there, as the next start of a trial does: the newest
    checkpoint must be the old or the new one, what was acknowledged must be there, nothing else
    may be left, and settling once more must change nothing.

    Args:
        storage: Where; its root must be for this test alone.
        points: How many crash points to try, spread evenly over all; default: all of them.
        scenarios: Which of `SCENARIO_NAMES`.
        most_losses: Ends early once so many are found; default: never.
        on_point: Called with the scenario before each crash.

    Returns:
        How many points were tried, of how many, and what was lost.
    """
    with _records() as (database, folder):
        explorer = _Explorer(storage, database, folder)
        there = [(name, point) for name in scenarios for point in explorer.points(name)]
        tried = []
        for name, point in spread(there, points):
            if most_losses is not None and len(explorer.losses) >= most_losses:
                break
            if on_point is not None:
                on_point(name, point)
            tried.append((name, point))
            explorer.crash(name, point)
    losses = tuple(explorer.losses)
    return TortureReport(_count(scenarios, tried), _count(scenarios, there), losses)


def spread(
    there: Sequence[tuple[str, CrashPoint]], points: int | None
) -> Sequence[tuple[str, CrashPoint]]:
    """Choose some points, evenly, the first and the last one included."""
    if points is None or points >= len(there):
        return there
    if points < 2:
        return there[: max(0, points)]
    last = len(there) - 1
    return [there[round(index * last / (points - 1))] for index in range(points)]


class _Explorer:
    """Crashes processes, one at a time.

    Attributes:
        losses: What was lost so far.
    """

    def __init__(self, storage: StorageBackend, database: Database, folder: Path) -> None:
        self._storage = storage
        self._database = database
        self._folder = folder
        self.losses: list[Loss] = []

    def points(self, name: str) -> list[CrashPoint]:
        """Let a process end undisturbed, and return where it could have been stopped."""
        fuse = Fuse()
        scenario = SCENARIOS[name]
        with self._bench(scenario) as bench:
            scenario.act(Process(bench, fuse))
            self._look(bench, name, "undisturbed", fuse)
        return list(_points(fuse.operations))

    def crash(self, name: str, point: CrashPoint) -> None:
        """Stop a process at a point, and look at what is left."""
        fuse = Fuse(point)
        scenario = SCENARIOS[name]
        with self._bench(scenario) as bench:
            try:
                scenario.act(Process(bench, fuse))
            except KeyboardInterrupt:
                raise
            except BaseException:
                if not fuse.is_dead:
                    raise
            self._look(bench, name, str(point), fuse)

    def _look(self, bench: Bench, name: str, when: str, fuse: Fuse) -> None:
        what = find_fault(bench, SCENARIOS[name])
        if what is not None:
            self.losses.append(Loss(name, when, fuse.operations[-1].name, what))

    def _bench(self, scenario: Scenario) -> contextlib.AbstractContextManager[Bench]:
        return make_bench(self._storage, self._database, self._folder, scenario.prepare)


def _points(operations: Sequence[Operation]) -> Iterator[CrashPoint]:
    for number, operation in enumerate(operations, 1):
        yield CrashPoint(number, Moment.BEFORE)
        if operation.is_divisible:
            yield CrashPoint(number, Moment.WITHIN)
        yield CrashPoint(number, Moment.AFTER)


def _count(scenarios: Sequence[str], points: Sequence[tuple[str, CrashPoint]]) -> dict[str, int]:
    counts: Mapping[str, int] = dict.fromkeys(scenarios, 0)
    for name, _ in points:
        counts = {**counts, name: counts[name] + 1}
    return dict(counts)


@contextlib.contextmanager
def _records() -> Iterator[tuple[Database, Path]]:
    from detcore.database import Database

    with (
        tempfile.TemporaryDirectory(prefix="detcore-torture-") as name,
        Database.open(f"sqlite:///{Path(name) / 'records.db'}") as database,
    ):
        yield database, Path(name)
