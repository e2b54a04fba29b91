"""Check the resume of any program with checkpoints, by the tensors of its final files."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from detcore.errors import RunError
from detcore_replay.resume_check.check_result import CheckResult, Plan
from detcore_replay.resume_check.scratch_runs import DelayedMoment, Moment, ScratchRuns
from detcore_replay.resume_check.tensor_files import compare_files

_POLL_INTERVAL_S = 0.01
_MAX_SCAN_SHARE = 0.2
# Smaller files than this part of the largest file are probably logs.
_MIN_SIZE_SHARE = 0.25
_MAX_SHOWN = 8
_USUAL_CAUSES = (
    "usual causes: the optimizer, a random generator, the position in the data or in a schedule "
    "is not in the checkpoint",
    "Are two uninterrupted runs equal?  --kills 0",
)
_UNREPEATABLE = ("training is not repeatable, even without a kill: seed all generators",)


class WriteWatcher:
    """Watches the files below a directory.

    Attributes:
        writes: Seconds and size in bytes of each change.
    """

    def __init__(self, folder: Path) -> None:
        self.writes: list[tuple[float, int]] = []
        self._folder = folder
        self._files = self._scan()
        self._next_scan = 0.0

    def watch(self, elapsed: float) -> bool:
        """Note the changes since the last call; return False, as a `Moment` that never comes."""
        if elapsed >= self._next_scan:
            start = time.monotonic()
            files = self._scan()
            self.writes += [
                (elapsed, entry[1])
                for path, entry in files.items()
                if self._files.get(path) != entry
            ]
            self._files = files
            duration = time.monotonic() - start
            self._next_scan = elapsed + max(_POLL_INTERVAL_S, duration / _MAX_SCAN_SHARE)
        return False

    def list_times(self, min_size: float) -> list[float]:
        """Return when files of a size or larger were written."""
        return sorted({elapsed for elapsed, size in self.writes if size >= min_size})

    def _scan(self) -> dict[str, tuple[int, int, int]]:
        files = {}
        for folder, _, names in os.walk(self._folder):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    entry = os.lstat(path)
                except FileNotFoundError:  # renamed since
                    continue
                files[path] = (entry.st_mtime_ns, entry.st_size, entry.st_ino)
        return files


class ProgramCheck:
    """Compares the final files of a program.

    Args:
        output: Its final file or directory, relative to the working directory.
    """

    def __init__(self, output: Path) -> None:
        self._output = output

    def watch(self, first: ScratchRuns) -> Moment:
        """Return a function to call during the uninterrupted run."""
        self._watcher = WriteWatcher(first.folder)
        return self._watcher.watch

    def choose_moments(
        self, plan: Plan, first: ScratchRuns, second: ScratchRuns
    ) -> tuple[list[Moment], list[str]]:
        """Choose moments between two writes of large files, which are probably checkpoints."""
        output = first.folder / self._output
        if not output.exists():
            names = ", ".join(sorted(os.listdir(first.folder))[:_MAX_SHOWN])
            raise RunError(
                f"{self._output} does not exist after '{plan.start}'.\n"
                "--output is the final file or directory of the program, relative to the working "
                f"directory, which now contains: {names}"
            )
        compare_files(output, output)  # fails now if a package is missing
        min_size = _MIN_SIZE_SHARE * max((size for _, size in self._watcher.writes), default=0)
        times = self._watcher.list_times(min_size)
        if len(times) < 2:
            note = "the program wrote no large file before its end, so kills were at chosen times"
            return [], [note] * bool(plan.num_kills and not plan.kill_after)
        delay = statistics.median(late - early for early, late in itertools.pairwise(times)) / 2
        share = (len(times) - 1) / (plan.num_kills + 1)
        counts = [0, *(max(1, round(share * (index + 1))) for index in range(plan.num_kills))]
        return [
            DelayedMoment(_prepare_count(second.folder, max(1, late - early), min_size), delay)
            for early, late in itertools.pairwise(counts)
        ], []

    def can_resume(self, second: ScratchRuns) -> bool:
        """Whether a killed run can be resumed; it is unknown, so the resume command is tried."""
        return True

    def compare(self, first: ScratchRuns, second: ScratchRuns, failure: str) -> CheckResult:
        """Compare the output of both runs. `failure` is how the second run failed, or ""."""
        if failure:
            advice = "If it had not saved a checkpoint yet, kill it later:  --kill-after SECONDS"
            return CheckResult(
                difference="the program does not resume",
                details=(*failure.splitlines(), advice),
            )
        files = compare_files(first.folder / self._output, second.folder / self._output)
        lines = files.differences
        more = [f"and {len(lines) - _MAX_SHOWN} more"] if len(lines) > _MAX_SHOWN else []
        causes = _USUAL_CAUSES if second.kills else _UNREPEATABLE
        return CheckResult(
            compared=(f"compared {files.counts}: {self._output}",),
            difference=f"{len(lines)} of them differ" if lines else "",
            details=(*lines[:_MAX_SHOWN], *more, *causes) if lines else (),
            notes=files.notes,
        )


def _prepare_count(folder: Path, num_writes: int, min_size: float) -> Callable[[], Moment]:
    """Return a function that starts to watch for a number of writes."""

    def prepare() -> Moment:
        watcher = WriteWatcher(folder)
        return lambda elapsed: (
            watcher.watch(elapsed) or len(watcher.list_times(min_size)) >= num_writes
        )

    return prepare
