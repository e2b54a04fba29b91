"""Scripts with Accelerate, killed for real."""

from __future__ import annotations

from pathlib import Path

import pytest
from _killed_scripts import Script

SCRIPT = Path(__file__).parent / "scripts" / "accelerate_script.py"


@pytest.fixture(autouse=True)
def _imported_once() -> None:
    """Import the library before processes are forked."""
    import detcore_torch.for_accelerate  # noqa: F401


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("epochs", "kills", "workers"),
    [
        pytest.param(2, 4, 0, id="few"),
        pytest.param(24, 50, 0, id="many", marks=pytest.mark.soak),
        pytest.param(24, 50, 2, id="loader-workers", marks=pytest.mark.soak),
    ],
)
def test_a_killed_script_equals_one_that_was_not(
    epochs: int, kills: int, workers: int, tmp_path: Path
) -> None:
    arguments = (f"--epochs={epochs}", f"--workers={workers}")
    whole = Script(SCRIPT, tmp_path / "whole", arguments)
    broken = Script(SCRIPT, tmp_path / "broken", arguments)
    assert whole.run() == 0, whole.output()
    broken.run_killed(seed=kills, kills=kills, at_most=5)
    # Each SIGTERM saves a checkpoint, from which the next process resumes.
    assert broken.output().count("(checkpoint ") >= kills // 2
    assert broken.result() == whole.result()
    assert broken.metrics("validation") == whole.metrics("validation")
    assert {step for step, _ in whole.metrics("training")} >= {2, 5, 6, 12, 18}
    # Nothing that the library pickles.
    suffixes = {Path(name).suffix for name in broken.checkpoint_files()}
    assert suffixes <= {".safetensors", ".json", ".py"}
