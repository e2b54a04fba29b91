"""Run programs in copies of a working directory, and kill them at chosen moments."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from detcore.environment import child_environment
from detcore.errors import RunError

Command = str | Sequence[str]
Moment = Callable[[float], bool]
"""Return whether to kill a program that was started this number of seconds ago."""

_POLL_INTERVAL_S = 0.002
_KILL_TIMEOUT_S = 10.0
_MAX_COPY_BYTES = 2 * 1024**3
_TAIL_LINES = 12
_MAX_WIDTH = 100
_LINKED = frozenset({".git", ".hg", ".nox", ".tox", ".venv", "node_modules"})
_SKIPPED = frozenset({"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"})
_MARK = "DETCORE_CHECK_DIRECTORY"
_RESET_VARIABLES = ("DETCORE_CHANNEL_FD", "DETCORE_DB", "DETCORE_MASTER", "DETCORE_TRIAL_INFO")


class ProgramFailedError(RunError):
    """Raised when a program exits with an error. The message ends with its last lines."""


@contextlib.contextmanager
def open_scratch() -> Iterator[Path]:
    """Create a scratch directory. At the end, kill its processes and delete the directory.

    SIGTERM and SIGHUP end the block like Ctrl-C.
    """

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before: dict[int, Any] = {signal.SIGINT: signal.getsignal(signal.SIGINT)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            before[number] = signal.signal(number, interrupt)
    folder = Path(tempfile.mkdtemp(prefix="detcore-check-"))
    try:
        yield folder
    finally:
        for interrupting in before:
            signal.signal(interrupting, signal.SIG_IGN)
        _kill_marked(folder)
        shutil.rmtree(folder)
        for interrupting, handler in before.items():
            signal.signal(interrupting, handler)


class ScratchRuns:
    """Runs of a program in a copy of a working directory, with a separate ``DETCORE_HOME``.

    Args:
        place: New subdirectory of the scratch directory.
        source: Directory to copy.
        linked: Paths in it that are linked instead of copied.

    Attributes:
        folder: The copy, which is the working directory of the runs. Its path is the same for all
            objects of a scratch directory, because the state of a program may contain it.
        home: The ``DETCORE_HOME`` of the runs.
        kills: Seconds between the start of each killed run and its kill.
        seconds: Total duration of all runs.
    """

    def __init__(self, place: Path, source: Path, linked: Sequence[str] = ()) -> None:
        self.folder, self.home = place.parent / "work", place / "home"
        self.kills: list[float] = []
        self.seconds = 0.0
        self._place, self._scratch = place, place.parent
        self._output = place / "output.txt"
        (place / "tmp").mkdir(parents=True)
        links = frozenset((source / path).absolute() for path in linked)
        shutil.rmtree(self.folder, ignore_errors=True)  # left by a failed run
        _TreeCopy(source, links).copy(source, self.folder)
        self._environment = child_environment(
            {
                "DETCORE_HOME": str(self.home),
                "TMPDIR": str(place / "tmp"),
                "PWD": str(self.folder),
                _MARK: str(place.parent),
            },
            without=_RESET_VARIABLES,
        )

    def run(self, command: Command, moment: Moment | None = None) -> bool:
        """Run a command to its end, or to a moment; return whether it was killed.

        Args:
            command: Words, or a line for the shell.
            moment: When to kill it and its descendants, or None.

        Raises:
            ProgramFailedError: If the command cannot be started or exits with an error.
        """
        start = time.monotonic()
        try:
            with self._output.open("wb") as output:
                process = subprocess.Popen(
                    command,
                    shell=isinstance(command, str),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self.folder,
                    env=self._environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise ProgramFailedError(f"{command} cannot be started: {error}") from error
        is_killed = False
        while process.poll() is None:
            elapsed = time.monotonic() - start
            if moment is not None and moment(elapsed):
                with contextlib.suppress(ProcessLookupError, PermissionError):  # it has exited
                    os.killpg(process.pid, signal.SIGKILL)
                _kill_marked(self._scratch)
                is_killed = process.wait() != 0
            else:
                time.sleep(_POLL_INTERVAL_S)
        self.seconds += time.monotonic() - start
        if is_killed:
            self.kills.append(elapsed)
        elif process.returncode:
            lines = self._output.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
            words = command if isinstance(command, str) else " ".join(command)
            name = textwrap.shorten(words, _MAX_WIDTH, placeholder=" ...")
            raise ProgramFailedError(
                "\n".join([f"'{name}' ended with code {process.returncode}. Last lines:", *lines])
            )
        return is_killed

    def set_aside(self) -> None:
        """Move the copy away, so that other runs can use its path."""
        self.folder = self.folder.rename(self._place / "work")


class DelayedMoment:
    """A moment some seconds after a condition.

    Args:
        prepare: Returns the condition, at the start of the run.
        delay: Seconds between the condition and the moment.
    """

    def __init__(self, prepare: Callable[[], Moment], delay: float) -> None:
        self._prepare, self._delay = prepare, delay
        self._condition: Moment | None = None
        self._met_at: float | None = None

    def __call__(self, elapsed: float) -> bool:
        if self._condition is None:
            self._condition = self._prepare()
        if self._met_at is None and self._condition(elapsed):
            self._met_at = elapsed
        return self._met_at is not None and elapsed >= self._met_at + self._delay


def _kill_marked(scratch: Path) -> None:
    """Kill the processes of a scratch directory that lead other groups (Linux).

    On other systems, workers of detcore exit with their runner.
    """
    entry = f"\0{_MARK}={scratch}\0".encode()
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    is_done = False
    while not is_done and time.monotonic() < deadline:
        is_done = True
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # other users' processes, or it has exited
                if entry in b"\0" + path.read_bytes() + b"\0":
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    is_done = False


class _TreeCopy:
    """Copies a directory, except for directories that are linked.

    Args:
        source: The directory.
        linked: Paths that are linked.
    """

    def __init__(self, source: Path, linked: frozenset[Path]) -> None:
        self._source, self._linked = source, linked
        self._num_bytes = 0

    def copy(self, source: Path, target: Path) -> None:
        """Copy a directory into a new directory.

        Raises:
            RunError: If the files are too large.
        """
        target.mkdir(parents=True)
        for path in source.iterdir():
            copy = target / path.name
            if path.name in _SKIPPED:
                continue
            is_linked = path in self._linked or path.name in _LINKED
            if is_linked or path.is_symlink() or (path / "pyvenv.cfg").exists():
                copy.symlink_to(path.resolve())
            elif path.is_dir():
                self.copy(path, copy)
            elif path.is_file():
                self._num_bytes += path.stat().st_size
                if self._num_bytes > _MAX_COPY_BYTES:
                    name = path.relative_to(self._source).parts[0]
                    raise RunError(
                        f"{self._source} has more than {_MAX_COPY_BYTES / 1024**3:.0f} GiB.\n"
                        "The program runs in copies of this directory, so that it changes none of "
                        "your files.\n"
                        f"Link directories with data that it only reads, such as:  --link {name}"
                    )
                shutil.copy2(path, copy)
