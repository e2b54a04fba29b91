"""Scripts with Hugging Face's `Trainer`, killed for real."""

from __future__ import annotations

from pathlib import Path

import pytest
from _killed_scripts import Script

pytest.importorskip("transformers")
pytestmark = pytest.mark.timeout(300)

SCRIPT = "transformers_script.py"


@pytest.fixture(autouse=True)
def _imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import the library before processes are forked, and never ask its servers."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import GPT2LMHeadModel, Trainer  # noqa: F401


@pytest.mark.parametrize(
    ("epochs", "kills"), [(2, 3), pytest.param(20, 50, marks=pytest.mark.soak)]
)
def test_a_killed_script_equals_one_that_was_not(epochs: int, kills: int, tmp_path: Path) -> None:
    variables = {"EPOCHS": str(epochs)}
    whole = Script(SCRIPT, tmp_path / "whole", variables)
    broken = Script(SCRIPT, tmp_path / "broken", variables)
    assert whole.run() == 0, whole.output()
    broken.run_killed(seed=kills, kills=kills, at_most=5)
    assert broken.result() == whole.result()
    assert [each for each in broken.metrics() if each[0] == "validation"] == [
        each for each in whole.metrics() if each[0] == "validation"
    ]
    assert {step for _, step, _ in whole.metrics()} >= {2, 5, 6, 12, 18}
    # Nothing that the library pickles.
    suffixes = {Path(name).suffix for name in broken.checkpoint_files()}
    assert suffixes <= {".safetensors", ".json", ".py"}
