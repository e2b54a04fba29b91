"""An exception on one of several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from loop_runs import LoopRuns

SCRIPT = Path(__file__).parent / "scripts" / "lightning_exception.py"


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_an_exception_on_one_rank_ends_all(tmp_path: Path) -> None:
    with LoopRuns(tmp_path) as runs:
        process = runs.start(
            "detcore", "launch", "--launcher", "torch", "-n", 2, "--", "python3", SCRIPT
        )
        _, stderr = process.communicate(timeout=500)
    assert process.returncode == 1
    assert "ValueError: a bad record" in stderr
    assert "rank 1 ended with exit code 1; ending the others" in stderr
