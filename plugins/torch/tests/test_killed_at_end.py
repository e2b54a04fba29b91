"""Scripts that are killed after their last checkpoint, before their own last lines."""

from __future__ import annotations

import importlib
import signal
from pathlib import Path

import pytest
from _campaign import FAMILIES
from _killed_scripts import KillAtEnd, Script

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
    whole, broken = (
        Script(path, tmp_path / name, [f"--ranks={ranks}"], ranks) for name in ("whole", "broken")
    )
    assert whole.run_to(None) == 0, whole.output()
    assert broken.run_to(KillAtEnd(0, 0, 0.0)) == -signal.SIGKILL, broken.output()
    assert broken.run_to(None) == 0, broken.output()
    assert broken.result() == whole.result()
    assert broken.metrics("validation") == whole.metrics("validation")
