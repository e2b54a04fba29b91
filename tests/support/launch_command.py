"""The `detcore launch` command, run like a user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Starter, wait_until

LAUNCH = [sys.executable, "-m", "detcore", "launch"]


def run_ranks(
    folder: Path, source: str, num_workers: int, *, code: int = 0
) -> tuple[list[Any], str]:
    """Run a script with the directory as its argument on some workers.

    Returns:
        The last line of each rank as JSON if the exit code is 0, and the complete output.
    """
    script = folder / "train.py"
    script.write_text(source)
    result = subprocess.run(
        [*LAUNCH, "-n", str(num_workers), "--", sys.executable, str(script), str(folder)],
        env={**os.environ, "DETCORE_HOME": str(folder / "home")},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    output = result.stdout + result.stderr
    assert result.returncode == code, output
    lines = [line for line in result.stdout.splitlines() if line.startswith("[rank=")]
    last_lines = {line[6 : line.index("]")]: line.partition("] ")[2] for line in lines}
    ranks = range(0 if code else num_workers)
    return [json.loads(last_lines[str(rank)]) for rank in ranks], output


class Launch(Starter):
    """Starts `detcore launch`, and kills remaining processes."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__()
        self.tmp_path = tmp_path
        self.variables: dict[str, str] = {}

    def script(self, source: str) -> Path:
        path = self.tmp_path / f"worker{len(list(self.tmp_path.glob('worker*')))}.py"
        path.write_text(source)
        return path

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*LAUNCH, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "DETCORE_HOME": str(self.tmp_path / "home"), **self.variables},
            cwd=self.tmp_path,
        )
        self.started.append(process)
        return process

    def __call__(
        self, *arguments: object, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        stdout, stderr = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def wait_for_files(self, pattern: str, count: int) -> list[Path]:
        def list_files() -> list[Path]:
            return sorted(path for path in self.tmp_path.glob(pattern) if path.read_text())

        wait_until(lambda: len(list_files()) == count)
        return list_files()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """`detcore launch`, in the test's directory."""
    with Launch(tmp_path) as command:
        yield command
