"""Stop a process at each of its checkpoint operations, and restore after each stop."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detcore_testing._crash import CrashPoint, Fuse, Moment, Operation
from detcore_testing._crash_bench import Bench, Process, make_bench
from detcore_testing._crash_scenarios import SCENARIOS, Scenario, find_fault

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
"""Names of the scenarios in which processes are stopped."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """A crash with a wrong outcome."""

    scenario: str
    point: str
    operation: str
    what: str

    def __str__(self) -> str:
        return f"{self.scenario}, {self.point} ({self.operation}): {self.what}"


@dataclasses.dataclass(frozen=True, slots=True)
class TortureReport:
    """Result of `torture_storage`.

    Attributes:
        points: Crash points tried, by scenario.
        totals: All crash points, by scenario.
        losses: Losses and leftovers; empty if there are no faults.
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

    The processes save (in every way), delete, delete a part, apply retention, register a model's
    version, recover the work of others, and repair. Immediately after a stop, every checkpoint that
    counts must be complete. Then a new process recovers, as the next start of a trial does: the
    newest checkpoint must be the old or the new one, acknowledged checkpoints must exist, nothing
    else may be left, and a second recovery must change nothing.

    Args:
        storage: The storage; its root must be used by this test only.
        points: Number of crash points to try, spread evenly over all; default: all of them.
        scenarios: A selection of `SCENARIO_NAMES`.
        most_losses: Stop early after this many losses; default: never.
        on_point: Called with the scenario before each crash.

    Returns:
        The number of points that were tried, their total, and the losses.
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
    """Choose some points, evenly, including the first and the last one."""
    if points is None or points >= len(there):
        return there
    if points < 2:
        return there[: max(0, points)]
    last = len(there) - 1
    return [there[round(index * last / (points - 1))] for index in range(points)]


class _Explorer:
    """Crashes processes, one at a time.

    Attributes:
        losses: Losses so far.
    """

    def __init__(self, storage: StorageBackend, database: Database, folder: Path) -> None:
        self._storage = storage
        self._database = database
        self._folder = folder
        self.losses: list[Loss] = []

    def points(self, name: str) -> list[CrashPoint]:
        """Let a process run to its end, and return the points where it could have been stopped."""
        fuse = Fuse()
        scenario = SCENARIOS[name]
        with self._bench(scenario) as bench:
            scenario.act(Process(bench, fuse))
            self._look(bench, name, "undisturbed", fuse)
        return list(_points(fuse.operations))

    def crash(self, name: str, point: CrashPoint) -> None:
        """Stop a process at a point, and check the resulting state."""
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
