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
"""Whether to kill a program that was started this number of seconds ago."""

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
        _check_size(source, links)
        shutil.rmtree(self.folder, ignore_errors=True)  # left by a failed run
        _copy_tree(source, self.folder, links)
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

    def run_with_kills(
        self, start: Command, choose_resume: Callable[[], Command], moments: Sequence[Moment]
    ) -> None:
        """Run a program that is killed and resumed at each moment, to its end.

        Args:
            start: The first command.
            choose_resume: Returns the command after a kill.
            moments: When to kill each run. The program may end earlier.
        """
        command = start
        for moment in (*moments, None):
            if not self.run(command, moment):
                return
            command = choose_resume()


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


def _check_size(source: Path, linked: frozenset[Path]) -> None:
    """Raise RunError if a directory is too large to copy without the linked paths."""
    sizes: dict[str, int] = {}
    for folder, names, files in os.walk(source):
        names[:] = [
            name
            for name in names
            if _is_copied(Path(folder, name)) and Path(folder, name) not in linked
        ]
        top = (*Path(folder).relative_to(source).parts, "")[0]
        for file in files:
            with contextlib.suppress(OSError):
                size = os.lstat(os.path.join(folder, file)).st_size
                sizes[top or file] = sizes.get(top or file, 0) + size
    total = sum(sizes.values())
    if total > _MAX_COPY_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise RunError(
            f"{source} has {total / 1024**3:.1f} GiB, most of it in {largest}.\n"
            "The program runs in copies of this directory, so that it changes none of your files.\n"
            f"If the program only reads {largest}, link it:  --link {largest}"
        )


def _is_copied(path: Path) -> bool:
    is_environment = path.name in _LINKED or (path / "pyvenv.cfg").exists()
    return path.name not in _SKIPPED and not is_environment and not path.is_symlink()


def _copy_tree(source: Path, target: Path, linked: frozenset[Path]) -> None:
    target.mkdir(parents=True)
    for path in source.iterdir():
        copy = target / path.name
        if path.name in _SKIPPED:
            continue
        if (
            path.absolute() in linked
            or path.is_symlink()
            or (path.is_dir() and not _is_copied(path))
        ):
            copy.symlink_to(path.resolve())
        elif path.is_dir():
            _copy_tree(path, copy, linked)
        elif path.is_file():
            shutil.copy2(path, copy)
