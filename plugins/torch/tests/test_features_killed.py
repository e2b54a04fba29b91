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


def check_killed(folder: Path, library: str, case: str, kills: Sequence[int]) -> None:
    """Check that a script that is killed before some steps ends as one that is not."""
    importlib.import_module(f"detcore_torch.for_{library}")  # before processes are forked
    arguments = [f"--case={case}", "--epochs=4"]
    path = SCRIPTS / f"{library}_cases.py"
    whole, broken = (Script(path, folder / name, arguments) for name in ("whole", "broken"))
    assert whole.run() == 0, whole.output()
    for kill in kills:
        assert broken.run(kill) == -signal.SIGKILL, broken.output()
    assert broken.run() == 0, broken.output()
    assert broken.result() == whole.result()
    assert broken.metrics("validation") == whole.metrics("validation")


@pytest.mark.parametrize("library", ["lightning", "accelerate"])
def test_lbfgs_ends_with_the_same_bits(tmp_path: Path, library: str) -> None:
    check_killed(tmp_path, library, "lbfgs", [4, 6, 9])
