"""Core API loops on plain loaders, killed with SIGKILL and resumed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from detcore_replay import verify_ledger

PROGRAM = Path(__file__).parent / "programs" / "two_sources.py"
sys.path.append(str(PROGRAM.parent))

import two_sources  # noqa: E402  (from the folder above)


def run(folder: Path, num_workers: int, num_steps: int, killed_at: int = 0) -> None:
    process = subprocess.run(
        [sys.executable, str(PROGRAM), str(num_workers), str(num_steps), str(killed_at)],
        cwd=folder,
        env={**os.environ, "DETCORE_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == (-signal.SIGKILL if killed_at else 0), process.stderr


def digests(folder: Path) -> list[str]:
    result: list[str] = json.loads((folder / "digests.json").read_text())
    return result


def assert_proved(folder: Path, num_steps: int, num_runs: int) -> None:
    for name in two_sources.NAMES:
        report = verify_ledger(folder / name)
        assert report.is_proved, (name, report)
        assert (report.last_step, len(report.runs)) == (num_steps, num_runs)


@pytest.mark.timeout(600)
def test_killed_loop_resumes_with_other_num_workers(tmp_path: Path) -> None:
    run(tmp_path, 2, 24, killed_at=13)  # checkpoints at 5 and 10; an epoch has 7 batches
    run(tmp_path, 0, 24)
    assert digests(tmp_path)[0] == two_sources.whole_digests(0, 24)[0]
    assert_proved(tmp_path, 24, 2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("num_workers", [[0], [2], [0, 2, 3, 1]], ids=str)
def test_loop_survives_fifty_kills(tmp_path: Path, num_workers: list[int]) -> None:
    draw, num_steps, num_saved = random.Random(str(num_workers)), 200, 0
    for start in range(50):
        killed_at = num_saved + draw.randint(1, 10)
        run(tmp_path, num_workers[start % len(num_workers)], num_steps, killed_at)
        num_saved = (killed_at - 1) // two_sources.CHECKPOINT_EVERY * two_sources.CHECKPOINT_EVERY
    run(tmp_path, num_workers[0], num_steps)
    expected = two_sources.whole_digests(num_workers[0], num_steps)
    # The order of a stream depends on the number of workers, the order of indexed records does not.
    compared = 2 if len(num_workers) == 1 else 1
    assert digests(tmp_path)[:compared] == expected[:compared]
    assert_proved(tmp_path, num_steps, 51)
