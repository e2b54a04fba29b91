"""Features of the `Trainer` of transformers in scripts that are killed at three moments."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from _killed_scripts import KILL_AT_END, Script, check_equal, run_pair

SCRIPT = Path(__file__).parent / "scripts" / "trainer_cases.py"

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("libraries")]


@pytest.fixture(autouse=True)
def _imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import the library before processes are forked, and never ask its servers."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import GPT2LMHeadModel, Trainer  # noqa: F401


def check_equal_to_library(whole: Script, case: str) -> None:
    """Check that detcore changes nothing; it draws other numbers from PyTorch's generator."""
    alone = Script(SCRIPT, whole.folder.parent / "alone", [f"--case={case}", "--alone"])
    assert alone.run() == 0, alone.output()
    expected = {name: digest for name, digest in alone.result().items() if name != "torch"}
    assert expected.items() <= whole.result().items()


@pytest.mark.parametrize(
    ("case", "kills"),
    [
        ("early_stopping", [2, 3, 3]),
        pytest.param("best_at_end", [3, 7, 9], marks=pytest.mark.soak),
        pytest.param("save_best", [7, 8, 9], marks=pytest.mark.soak),
        ("callbacks", [2, 4, 4]),
        # A group of parameters is added at step 5.
        pytest.param("unfreeze", [3, 7, 9], marks=pytest.mark.soak),
    ],
)
def test_trainer_ends_as_the_library_alone(tmp_path: Path, case: str, kills: list[int]) -> None:
    """Early stopping, the best model, and attributes of callbacks."""
    whole, broken = run_pair(SCRIPT, tmp_path, [f"--case={case}"], kills=kills)
    check_equal(whole, broken)
    check_equal_to_library(whole, case)
    assert "cannot hold" not in whole.output()


@pytest.mark.soak
@pytest.mark.parametrize("case", ["early_stopping", "best_at_end", "plateau", "callbacks"])
def test_trainer_killed_after_its_training_is_restored(tmp_path: Path, case: str) -> None:
    check_equal(*run_pair(SCRIPT, tmp_path, [f"--case={case}"], kills=[KILL_AT_END]))


@pytest.mark.soak
@pytest.mark.parametrize("case", ["early_stopping", "best_at_end", "plateau", "callbacks"])
def test_preempted_trainer_ends_as_one_that_was_not(tmp_path: Path, case: str) -> None:
    whole, broken = (
        Script(SCRIPT, tmp_path / name, [f"--case={case}"]) for name in ("whole", "broken")
    )
    assert whole.run() == 0, whole.output()
    assert broken.run(4, signal.SIGTERM) == 75, broken.output()
    assert broken.run() == 0, broken.output()
    check_equal(whole, broken)


@pytest.mark.soak
def test_each_rank_restores_its_own_callbacks(tmp_path: Path) -> None:
    whole, broken = (
        Script(SCRIPT, tmp_path / name, ["--case=callbacks"], ranks=2)
        for name in ("whole", "broken")
    )
    assert whole.run() == 0, whole.output()
    for kill in (3, 4):
        assert broken.run(kill) < 0, broken.output()
        assert broken.checkpoint_files()
    assert broken.run() == 0, broken.output()
    check_equal(whole, broken)
    result = whole.result()
    assert result["model"] == result["model of rank 1"]
    assert result["summary"] != result["summary of rank 1"]


@pytest.mark.soak
def test_plateau_schedule_continues(tmp_path: Path) -> None:
    check_equal(*run_pair(SCRIPT, tmp_path, ["--case=plateau"], kills=[3, 7, 9]))


@pytest.mark.parametrize(
    "workers", [0, pytest.param(2, marks=pytest.mark.soak)], ids=lambda value: f"{value}-workers"
)
def test_shuffled_stream_continues(tmp_path: Path, workers: int) -> None:
    """An IterableDataset with a length, whose order and noise come from the generators."""
    from detcore_replay import verify_ledger

    arguments = ["--case=stream", f"--workers={workers}"]
    whole, broken = run_pair(SCRIPT, tmp_path, arguments, kills=[3, 7, 9])
    check_equal(whole, broken)
    ledger = verify_ledger(broken.folder)
    assert ledger.is_proved, ledger.sentence()


def test_short_stream_is_refused(tmp_path: Path) -> None:
    """A stream without a length, which ends before the place of the checkpoint."""
    script = Script(SCRIPT, tmp_path / "run", ["--case=short_stream"])
    assert script.run(13) == -signal.SIGKILL, script.output()
    assert script.run() == 3
    assert "the training data ended before the place of step" in script.output()


def test_unsaved_attributes_are_named(tmp_path: Path) -> None:
    script = Script(SCRIPT, tmp_path / "run", ["--case=unsaved", "--epochs=1"])
    assert script.run() == 0, script.output()
    assert script.output().count("training has changed Writer.file, which a checkpoint") == 1
