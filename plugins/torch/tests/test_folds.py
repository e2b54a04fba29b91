"""Scripts that train several times with equal arguments, killed during and between folds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "folds.py"


@pytest.mark.cold
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("case", "kills"),
    [
        pytest.param("trainer", ["between"], id="trainer-between"),
        *(
            pytest.param(case, ["3", "between", "2"], id=case, marks=pytest.mark.soak)
            for case in ("accelerate", "lightning", "trainer")
        ),
    ],
)
def test_each_fold_resumes_its_run(case: str, kills: list[str], tmp_path: Path) -> None:
    def run(folder: str, kill_at: str = "") -> list[str]:
        (tmp_path / folder).mkdir(exist_ok=True)
        variables = {
            "DETCORE_HOME": str(tmp_path / folder / "home"), "KILL_AT": kill_at,
            "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        finished = subprocess.run(
            [sys.executable, SCRIPT, f"--case={case}"],
            cwd=tmp_path / folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert finished.returncode == (-signal.SIGKILL if kill_at else 0), finished.stderr
        return [line for line in finished.stdout.splitlines() if line.startswith("fold ")]

    expected = run("whole")
    for kill_at in kills:
        run("broken", kill_at)
    assert run("broken") == expected
