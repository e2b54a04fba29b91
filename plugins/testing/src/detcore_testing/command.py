"""The `detcore` command with a separate home directory."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from detcore.environment import child_environment, read_variables
from detcore_testing.processes import find_marked_processes, kill_processes, wait_until_empty

if TYPE_CHECKING:
    from typing_extensions import Self


_T = TypeVar("_T")

# Environment variable that every started process inherits, so that all of them can be found.
_MARK = "DETCORE_TESTING_MARK"
_POLL_INTERVAL_S = 0.02


@dataclasses.dataclass(frozen=True)
class Finished:
    """A finished command.

    Attributes:
        code: Exit code. Negative: number of the signal that killed the command.
        stdout: Standard output.
        stderr: Standard error.
    """

    code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Standard output followed by standard error."""
        return self.stdout + self.stderr

    @property
    def summary(self) -> dict[str, Any]:
        """JSON object printed by ``--json``, in the last line or in the complete output."""
        last_line = self.stdout.rstrip().rpartition("\n")[2]
        parsed: dict[str, Any] = json.loads(last_line if last_line.startswith("{") else self.stdout)
        return parsed


class DetcoreCommand:
    """The `detcore` command in a subprocess, with a separate ``DETCORE_HOME``.

    ```python
    with DetcoreCommand(tmp_path) as detcore:
        finished = detcore("run", detcore.write_config(settings), model_dir, "--json")
        assert finished.code == 0, finished.output
    ```

    At the end of the block all remaining processes are killed, including grandchildren and
    daemons.

    Args:
        folder: Directory for all files, and working directory of the commands. Created if missing.
        python_path: Import directories of the processes, before the directories of this process.
        variables: Additional environment variables of the processes.

    Attributes:
        folder: Absolute path of the directory.
        home: The ``DETCORE_HOME``.
        started: Started commands, oldest first.
    """

    def __init__(
        self,
        folder: Path,
        *,
        python_path: Sequence[Path] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.home = self.folder / "home"
        self.started: list[subprocess.Popen[str]] = []
        self._python_path = [str(path) for path in python_path]
        self._variables = dict(variables or {})
        self._mark = uuid.uuid4().hex
        self._num_configs = 0

    def __enter__(self) -> Self:
        """Create the directory."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Kill the remaining processes."""
        self.close()

    def close(self) -> None:
        """Kill the remaining processes and wait until they have exited."""
        for process in self.started:
            with process:  # also closes the pipes
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        kill_processes(self.leftovers(0))
        self.leftovers(10)

    def variables(self) -> dict[str, str]:
        """Return the environment variables of the processes."""
        inherited = read_variables(["PYTHONPATH"]).get("PYTHONPATH", "")
        path = [*self._python_path, *([inherited] if inherited else [])]
        return child_environment(
            {
                "DETCORE_HOME": str(self.home),
                "COLUMNS": "100",
                _MARK: self._mark,
                **({"PYTHONPATH": os.pathsep.join(path)} if path else {}),
                **self._variables,
            },
            without=("DETCORE_DB", "DETCORE_PLUGINS", "DETCORE_DISABLE_PLUGINS"),
        )

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Start a command and return immediately.

        Args:
            arguments: Words after ``detcore``, such as ``"run"`` and a path.
        """
        return self.start_python("-m", "detcore", *arguments)

    def start_python(self, *arguments: object, cwd: Path | None = None) -> subprocess.Popen[str]:
        """Start Python with the same home and variables, and return immediately.

        Args:
            arguments: Words after ``python``.
            cwd: Working directory; default: `folder`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=self.variables(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd or self.folder,
        )
        self.started.append(process)
        return process

    def __call__(self, *arguments: object, timeout_s: float = 120) -> Finished:
        """Run a command to completion.

        Args:
            arguments: Words after ``detcore``.
            timeout_s: Maximum duration in seconds.

        Raises:
            TimeoutError: If the timeout expires. The message contains the output so far.
        """
        return finish(self.start(*arguments), timeout_s)

    def python(
        self, *arguments: object, timeout_s: float = 120, cwd: Path | None = None
    ) -> Finished:
        """Run Python to completion. See `start_python`."""
        return finish(self.start_python(*arguments, cwd=cwd), timeout_s)

    def write_config(self, settings: Mapping[str, Any]) -> Path:
        """Write an experiment file and return its path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._num_configs += 1
        path = self.folder / f"config-{self._num_configs}.yaml"
        path.write_text(yaml.safe_dump(dict(settings)), encoding="utf-8")
        return path

    def leftovers(self, timeout_s: float = 5.0) -> dict[int, str]:
        """Return the process ids and command lines of processes that outlived their command.

        Args:
            timeout_s: How long to wait for the processes to exit, in seconds.
        """
        return wait_until_empty(lambda: find_marked_processes(_MARK, self._mark), timeout_s)

    def wait_for(self, condition: Callable[[], _T], timeout_s: float = 60) -> _T:
        """Wait until a condition is true, and return its value.

        Args:
            condition: Called repeatedly.
            timeout_s: How long to wait, in seconds.

        Raises:
            AssertionError: If the command that was started last fails while waiting.
            TimeoutError: If the timeout expires.
        """
        deadline = time.monotonic() + timeout_s
        process = self.started[-1]
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            if process.poll() not in (None, 0, -9):
                raise AssertionError(f"the command failed: {process.communicate()}")
            time.sleep(_POLL_INTERVAL_S)
        raise TimeoutError(f"the condition was not true within {timeout_s} s")


def finish(process: subprocess.Popen[str], timeout_s: float) -> Finished:
    """Wait for a command to end."""
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        words = " ".join(map(str, process.args[1:])) if isinstance(process.args, list) else ""
        raise TimeoutError(
            f"'python {words}' did not finish within {timeout_s} s. Output:\n{stdout}{stderr}"
        ) from None
    return Finished(process.returncode, stdout, stderr)
