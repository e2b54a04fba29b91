"""Check the resume of any program with checkpoints, by the tensors of its final files."""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from detcore.errors import RunError
from detcore_replay.resume_check.check_result import CheckResult
from detcore_replay.resume_check.scratch_runs import Moment, ProgramFailedError, ScratchRuns
from detcore_replay.resume_check.tensor_files import compare_files

_POLL_INTERVAL_S = 0.01
_MAX_SCAN_SHARE = 0.2
# Smaller files than this part of the largest file are probably logs.
_MIN_SIZE_SHARE = 0.25
_MAX_SHOWN = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program with checkpoints.

    Attributes:
        start: Shell command that starts it.
        resume: Shell command that resumes it.
        output: Its final file or directory, relative to the working directory.
        kill_after: Seconds between the start of each run and its kill; empty: chosen here.
        num_kills: Number of kills.
    """

    start: str
    resume: str
    output: Path
    kill_after: Sequence[float]
    num_kills: int


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


def check_program(
    program: Program, open_runs: Callable[[], ScratchRuns], notice: Callable[[str], None]
) -> CheckResult:
    """Run a program uninterrupted, then with kills, and compare its output.

    Args:
        program: The program.
        open_runs: Returns an empty place for runs.
        notice: Called with messages about the progress.

    Raises:
        RunError: If the program fails without a kill, or its output cannot be read.
    """
    notice("run 1: uninterrupted")
    first = open_runs()
    watcher = WriteWatcher(first.folder)
    first.run(program.start, watcher.watch)
    first.set_aside()
    output = first.folder / program.output
    if not output.exists():
        raise RunError(
            f"{program.output} does not exist after '{program.start}'.\n"
            "--output is the final file or directory of the program, relative to the working "
            f"directory, in which there are now: {', '.join(sorted(os.listdir(first.folder))[:8])}"
        )
    compare_files(output, output)  # fails now if a package is missing
    notice(f"run 2: with {program.num_kills} kills (run 1 took {first.seconds:.1f} s)")
    second = open_runs()
    moments, notes = _choose_moments(program, watcher, first.seconds, second.folder)
    try:
        second.run_with_kills(program.start, lambda: program.resume, moments)
    except ProgramFailedError as error:
        return CheckResult(
            seconds=(first.seconds, second.seconds),
            kills=tuple(second.kills),
            difference="the program does not resume",
            details=(
                *str(error).splitlines(),
                "If it had not saved a checkpoint yet, kill it later:  --kill-after SECONDS",
            ),
        )
    comparison = compare_files(output, second.folder / program.output)
    if len(second.kills) < len(moments):
        notes.append(f"the program ended before {len(moments) - len(second.kills)} of the kills")
    differences = comparison.differences
    counts = comparison.counts
    lines = [f"{part.file or program.output}: {part.tensor} {part.reason}" for part in differences]
    more = [f"and {len(lines) - _MAX_SHOWN} more"] if len(lines) > _MAX_SHOWN else []
    return CheckResult(
        seconds=(first.seconds, second.seconds),
        kills=tuple(second.kills),
        compared=(f"compared {counts}: {program.output}",),
        difference=f"{len(differences)} of them differ" if differences else "",
        details=(*lines[:_MAX_SHOWN], *more, *_explain(second.kills) * bool(differences)),
        notes=(*notes, *comparison.notes),
    )


def _explain(kills: Sequence[float]) -> list[str]:
    if not kills:
        return [
            "Two uninterrupted runs differ, so training is not repeatable. Seed all generators."
        ]
    return [
        "Usual causes: the optimizer, a random generator, the position in the data or in a "
        "schedule is not in the checkpoint.",
        "Are two uninterrupted runs equal?  --kills 0",
    ]


def _choose_moments(
    program: Program, watcher: WriteWatcher, duration: float, folder: Path
) -> tuple[list[Moment], list[str]]:
    """Return the moments of the kills, and notes about them.

    The program is killed between two writes of its large files, which are probably checkpoints.
    """
    if program.kill_after:
        return [_create_timer(seconds) for seconds in program.kill_after], []
    num_kills = program.num_kills
    min_size = _MIN_SIZE_SHARE * max((size for _, size in watcher.writes), default=0)
    times = watcher.list_times(min_size)
    shares = [(number + 1) / (num_kills + 1) for number in range(num_kills)]
    if len(times) < 2:
        note = "the program wrote no large file before its end, so the kills are at chosen times"
        return [_create_timer(share * duration) for share in shares], [note] * bool(num_kills)
    delay = statistics.median(late - early for early, late in itertools.pairwise(times)) / 2
    counts = [max(1, round(share * (len(times) - 1))) for share in shares]
    needed = [max(1, late - early) for early, late in itertools.pairwise([0, *counts])]
    return [_WritesMoment(folder, number, min_size, delay) for number in needed], []


def _create_timer(seconds: float) -> Moment:
    return lambda elapsed: elapsed >= seconds


class _WritesMoment:
    """A moment some seconds after a number of writes in one run."""

    def __init__(self, folder: Path, num_writes: int, min_size: float, delay: float) -> None:
        self._folder, self._num_writes = folder, num_writes
        self._min_size, self._delay = min_size, delay
        self._watcher: WriteWatcher | None = None

    def __call__(self, elapsed: float) -> bool:
        if self._watcher is None:  # the first call of its run
            self._watcher = WriteWatcher(self._folder)
        self._watcher.watch(elapsed)
        times = self._watcher.list_times(self._min_size)
        is_written = len(times) >= self._num_writes
        return is_written and elapsed >= times[self._num_writes - 1] + self._delay
