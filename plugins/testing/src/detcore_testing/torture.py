"""Stop a process at each of its checkpoint operations, and check recovery after each stop."""

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
        points: Number of tried crash points by scenario.
        totals: Number of all crash points by scenario.
        losses: Losses and leftovers by scenario. Empty without faults.
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
    """Stop a process before, within and after each of its operations.

    The processes save in every way, delete a checkpoint or a part, apply retention, recover the
    work of other processes, and repair. After a stop, every checkpoint that counts as complete must
    be intact. Then a new process recovers, as the next start of a trial does. The latest checkpoint
    must be the old or the new checkpoint, acknowledged checkpoints must exist, no other files may
    remain, and a second recovery must change nothing.

    Args:
        storage: The storage. Only this test may use its location.
        points: Number of crash points to try, spread evenly. Default: all crash points.
        scenarios: Names in `detcore_testing.crash.crash_scenarios`. Default: all scenarios.
        on_point: Called with the scenario and the crash point before each crash.

    Returns:
        The number of tried points, their total, and the losses.
    """
    from detcore.records import Database

    losses: dict[str, list[str]] = {}

    def run_until_crash(name: str, point: CrashPoint | None) -> Fuse:
        """Run a process until it is stopped, and check the resulting state."""
        scenario, fuse = SCENARIOS[name], Fuse(point)
        with make_bench(storage, database, folder, scenario.prepare) as bench:
            try:
                scenario.act(Process(bench, fuse))
            except BaseException as error:
                if not fuse.is_dead or isinstance(error, KeyboardInterrupt):
                    raise
            fault = find_fault(bench, scenario)
        if fault is not None:
            position = f"{point or 'no crash'} ({fuse.operations[-1][0]})"
            losses.setdefault(name, []).append(f"{name}, {position}: {fault}")
        return fuse

    with (
        tempfile.TemporaryDirectory(prefix="detcore-torture-") as path,
        Database.open(f"sqlite:///{Path(path) / 'records.db'}") as database,
    ):
        folder = Path(path)
        all_points = [
            (name, point)
            for name in scenarios
            for point in _list_points(run_until_crash(name, None))
        ]
        selected_points = _select_evenly(all_points, points)
        for name, point in selected_points:
            on_point(name, point)
            run_until_crash(name, point)
    counts = Counter(name for name, _ in selected_points)
    totals = Counter(name for name, _ in all_points)
    return TortureReport({name: counts[name] for name in scenarios}, dict(totals), losses)


def _select_evenly(points: Sequence[_Point], count: int | None) -> Sequence[_Point]:
    """Select evenly spread points, including the first and the last point."""
    if count is None or count >= len(points):
        return points
    last = len(points) - 1
    return [points[round(index * last / max(1, count - 1))] for index in range(count)]


def _list_points(fuse: Fuse) -> list[CrashPoint]:
    """Return the points at which the process of a fuse could have been stopped."""
    return [
        CrashPoint(number, moment)
        for number, (_, is_divisible) in enumerate(fuse.operations, 1)
        for moment in Moment
        if is_divisible or moment is not Moment.WITHIN
    ]
