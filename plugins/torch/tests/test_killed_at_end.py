"""Scripts that are killed after their last checkpoint, before their own last lines."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from _campaign import FAMILIES
from _killed_scripts import KILL_AT_END, check_equal, run_pair

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("family", "task", "ranks"),
    [
        ("trainer", "digits", 2), ("trainer", "points", 1), ("lightning", "points", 1),
        ("lightning", "digits", 2), ("accelerate", "points", 1), ("accelerate", "digits", 2),
    ],
)  # fmt: skip
def test_the_state_is_that_of_the_end(
    family: str, task: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    importlib.import_module(FAMILIES[family])
    path = SCRIPTS / f"{family}_{task}.py"
    arguments = [f"--ranks={ranks}"]
    check_equal(*run_pair(path, tmp_path, arguments, kills=[KILL_AT_END], ranks=ranks))
