"""A script with Hugging Face's `Trainer`, killed for real."""

from __future__ import annotations

from pathlib import Path

import pytest
from _killed_scripts import Script

EXAMPLE = Path(__file__).parents[3] / "examples" / "trainer_torch"
ARGUMENTS = (
    "--max_steps=18",  # two epochs
    "--max_train_samples=70",
    "--max_eval_samples=16",
    "--per_device_train_batch_size=4",
    "--warmup_steps=2",
    "--logging_steps=5",
    "--eval_steps=6",
    "--save_steps=2",
)


@pytest.fixture(autouse=True)
def _imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import the library before processes are forked, and never ask its servers."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import GPT2LMHeadModel, Trainer  # noqa: F401


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("steps", "kills", "more"),
    [
        pytest.param(18, 3, (), id="few"),
        pytest.param(180, 50, (), id="many", marks=pytest.mark.soak),
        pytest.param(
            36, 10, ("--dataloader_num_workers=2",), id="loader-workers", marks=pytest.mark.soak
        ),
    ],
)
def test_a_killed_script_equals_one_that_was_not(
    steps: int, kills: int, more: tuple[str, ...], tmp_path: Path
) -> None:
    arguments = (*ARGUMENTS, f"--max_steps={steps}", *more)
    whole = Script(EXAMPLE / "train.py", tmp_path / "whole", arguments)
    broken = Script(EXAMPLE / "train.py", tmp_path / "broken", arguments)
    assert whole.run() == 0, whole.output()
    broken.run_killed(seed=kills, kills=kills, at_most=5)
    assert broken.result() == whole.result()
    assert broken.metrics("validation") == whole.metrics("validation")
    steps_reported = {step for step, _ in whole.metrics("training")}
    assert steps_reported >= {2, 5, 6, 12, 18}
    # Nothing that the library pickles.
    suffixes = {Path(name).suffix for name in broken.checkpoint_files()}
    assert suffixes <= {".safetensors", ".json", ".py"}
