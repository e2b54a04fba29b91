"""Stop a process at each of its checkpoint operations, and restore after each stop."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detcore_testing.crash.crash_bench import Process, make_bench
from detcore_testing.crash.crash_points import CrashPoint, Fuse, Moment
from detcore_testing.crash.crash_scenarios import SCENARIOS, find_fault

if TYPE_CHECKING:
    from detcore.storage import StorageBackend

__all__ = ["CrashPoint", "TortureReport", "torture_storage"]

_Point = tuple[str, CrashPoint]


@dataclasses.dataclass(frozen=True, slots=True)
class TortureReport:
    """Result of `torture_storage`.

    Attributes:
        points: Crash points tried, by scenario.
        totals: All crash points, by scenario.
        losses: Descriptions of losses and leftovers, by scenario; empty if there are no faults.
    """

    points: dict[str, int]
    totals: dict[str, int]
    losses: dict[str, list[str]]


def torture_storage(
    storage: StorageBackend,
    *,
    points: int | None = None,
    scenarios: Collection[str] = tuple(SCENARIOS),
    on_point: Callable[[str, CrashPoint], None] = lambda _scenario, _point: None,
) -> TortureReport:
    """Stop processes at each of their operations, one by one: before, within and after it.

    The processes save (in every way), delete, delete a part, apply retention, recover the work of
    others, and repair. Immediately after a stop, every checkpoint that
    counts must be complete. Then a new process recovers, as the next start of a trial does: the
    newest checkpoint must be the old or the new one, acknowledged checkpoints must exist, nothing
    else may be left, and a second recovery must change nothing.

    Args:
        storage: The storage; its root must be used by this test only.
        points: Number of crash points to try, spread evenly over all; default: all of them.
        scenarios: Names in `detcore_testing.crash.crash_scenarios`; default: all of them.
        on_point: Called with the scenario before each crash.

    Returns:
        The number of points that were tried, their total, and the losses.
    """
    from detcore.records import Database

    losses: dict[str, list[str]] = {}

    def crash(name: str, point: CrashPoint | None) -> Fuse:
        """Let a process act until it is stopped, and check the resulting state."""
        scenario, fuse = SCENARIOS[name], Fuse(point)
        with make_bench(storage, database, folder, scenario.prepare) as bench:
            try:
                scenario.act(Process(bench, fuse))
            except BaseException as error:
                if not fuse.is_dead or isinstance(error, KeyboardInterrupt):
                    raise
            fault = find_fault(bench, scenario)
        if fault is not None:
            where = f"{point or 'undisturbed'} ({fuse.operations[-1][0]})"
            losses.setdefault(name, []).append(f"{name}, {where}: {fault}")
        return fuse

    with (
        tempfile.TemporaryDirectory(prefix="detcore-torture-") as path,
        Database.open(f"sqlite:///{Path(path) / 'records.db'}") as database,
    ):
        folder = Path(path)
        every = [(name, point) for name in scenarios for point in _points(crash(name, None))]
        tried = _spread(every, points)
        for name, point in tried:
            on_point(name, point)
            crash(name, point)
    counts, totals = (Counter(name for name, _ in some) for some in (tried, every))
    return TortureReport({name: counts[name] for name in scenarios}, dict(totals), losses)


def _spread(every: Sequence[_Point], points: int | None) -> Sequence[_Point]:
    """Choose some points, evenly, including the first and the last one."""
    if points is None or points >= len(every):
        return every
    last = len(every) - 1
    return [every[round(index * last / max(1, points - 1))] for index in range(points)]


def _points(fuse: Fuse) -> list[CrashPoint]:
    """Return the points where the process of a fuse could have been stopped."""
    return [
        CrashPoint(number, moment)
        for number, (_, is_divisible) in enumerate(fuse.operations, 1)
        for moment in Moment
        if is_divisible or moment is not Moment.WITHIN
    ]
