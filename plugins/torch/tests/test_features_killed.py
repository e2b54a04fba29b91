"""Features of libraries in scripts that are killed early, in the middle, and late."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from _killed_scripts import Script

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = pytest.mark.timeout(600)


def make_script(folder: Path, library: str, case: str, *arguments: str) -> Script:
    importlib.import_module(f"detcore_torch.for_{library}")  # before processes are forked
    return Script(
        SCRIPTS / f"{library}_cases.py", folder, [f"--case={case}", "--epochs=4", *arguments]
    )


def check_killed(folder: Path, library: str, case: str, kills: Sequence[int]) -> None:
    """Check that a script that is killed before some steps ends as one that is not."""
    whole, broken = (make_script(folder / name, library, case) for name in ("whole", "broken"))
    assert whole.run() == 0, whole.output()
    for kill in kills:
        assert broken.run(kill) == -signal.SIGKILL, broken.output()
    assert broken.run() == 0, broken.output()
    assert broken.result() == whole.result()
    assert broken.metrics("validation") == whole.metrics("validation")


@pytest.mark.parametrize(
    ("library", "case"),
    [
        ("accelerate", "finetune"),  # layers are unfrozen, and a group of parameters is added
        pytest.param("accelerate", "lbfgs", marks=pytest.mark.soak),
        pytest.param("lightning", "lbfgs", marks=pytest.mark.soak),
    ],
)
def test_training_ends_as_without_kills(tmp_path: Path, library: str, case: str) -> None:
    check_killed(tmp_path, library, case, [4, 6, 9])


def test_an_optimizer_made_during_training_is_refused_before_a_checkpoint(tmp_path: Path) -> None:
    script = make_script(tmp_path / "script", "accelerate", "new-optimizer")
    assert script.run() == 3
    expected = "training started with AdamW, and the script has AdamW, SGD now"
    assert expected in script.output(), script.output()
