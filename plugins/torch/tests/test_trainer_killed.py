"""Features of the transformers `Trainer` in scripts that are killed at three moments."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from _killed_scripts import SCRIPTS, KillAtEnd, Script, Signal, check_resume

SCRIPT = SCRIPTS / "trainer_cases.py"

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("libraries")]


def check_equal_to_library(whole: Script, case: str) -> None:
    """Check that detcore changes nothing except the numbers from PyTorch's generator."""
    alone = Script(SCRIPT, whole.folder.parent / "alone", [f"--case={case}", "--alone"])
    results = alone.finish().result()
    expected = {name: digest for name, digest in results.items() if name != "torch"}
    assert expected.items() <= whole.result().items()


@pytest.mark.parametrize(
    ("case", "stops"),
    [
        ("early_stopping", [2, 3, 3]),
        pytest.param("best_at_end", [3, 7, 9], marks=pytest.mark.soak),
        pytest.param("save_best", [7, 8, 9], marks=pytest.mark.soak),
        ("callbacks", [2, 4, 4]),
        # A parameter group is added at step 5.
        pytest.param("unfreeze", [3, 7, 9], marks=pytest.mark.soak),
    ],
)
def test_trainer_ends_like_plain_library(tmp_path: Path, case: str, stops: list[int]) -> None:
    """Early stopping, the best model, and attributes of callbacks."""
    expected, _ = check_resume(SCRIPT, tmp_path, [f"--case={case}"], stops=stops)
    check_equal_to_library(expected, case)
    assert "cannot contain" not in expected.output()


@pytest.mark.soak
@pytest.mark.parametrize("case", ["early_stopping", "best_at_end", "plateau", "callbacks"])
@pytest.mark.parametrize("stop", [KillAtEnd(), Signal(4, signal.SIGTERM)], ids=["end", "preempted"])
def test_interrupted_trainer_ends_like_uninterrupted(
    tmp_path: Path, case: str, stop: KillAtEnd | Signal
) -> None:
    check_resume(SCRIPT, tmp_path, [f"--case={case}"], stops=[stop])


@pytest.mark.soak
def test_each_rank_restores_callbacks(tmp_path: Path) -> None:
    stops = [Signal(step, needs_checkpoint=True) for step in (3, 4)]
    expected, _ = check_resume(SCRIPT, tmp_path, ["--case=callbacks"], stops=stops, ranks=2)
    result = expected.result()
    assert result["model"] == result["model of rank 1"]
    assert result["summary"] != result["summary of rank 1"]


@pytest.mark.soak
def test_plateau_schedule_continues(tmp_path: Path) -> None:
    check_resume(SCRIPT, tmp_path, ["--case=plateau"], stops=[3, 7, 9])


@pytest.mark.parametrize(
    "workers", [0, pytest.param(2, marks=pytest.mark.soak)], ids=lambda value: f"{value}-workers"
)
def test_shuffled_stream_continues(tmp_path: Path, workers: int) -> None:
    """An IterableDataset with a length, whose order and noise come from the generators."""
    from detcore_replay import verify_ledger

    arguments = ["--case=stream", f"--workers={workers}"]
    _, broken = check_resume(SCRIPT, tmp_path, arguments, stops=[3, 7, 9])
    ledger = verify_ledger(broken.folder)
    assert ledger.is_proved, ledger.sentence()


def test_short_stream_is_rejected(tmp_path: Path) -> None:
    """A stream without a length, which ends before the position of the checkpoint."""
    script = Script(SCRIPT, tmp_path / "run", ["--case=short_stream"])
    script.interrupt(13)
    assert script.run() == 3
    assert "the training data ended before step" in script.output()


def test_unsaved_attributes_are_named(tmp_path: Path) -> None:
    script = Script(SCRIPT, tmp_path / "run", ["--case=unsaved", "--epochs=1"])
    assert (
        script.finish().output().count("training has changed Writer.file, which a checkpoint") == 1
    )
