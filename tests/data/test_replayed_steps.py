"""Comparison of a resumed run with the steps that an earlier run has trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detcore.data import ResumeComparison, StepDigests, read_digests
from detcore.types import TrialInfo


def run_steps(
    folder: Path, run_id: int, start: int, stop: int, *, wrong: str = "", at: int = 0
) -> list[ResumeComparison]:
    """Train steps with a report every 5 steps; return what the comparison reported."""
    results: list[ResumeComparison] = []
    info = TrialInfo(
        experiment_id=1, trial_id=1, run_id=run_id, trial_seed=0, hparams={}, config={},
        model_dir="", trial_dir=str(folder), steps_completed=start,
        latest_checkpoint="uuid" if start else None,
    )  # fmt: skip
    digests = StepDigests.for_trial(info, every=1, on_compared=results.append)
    state = {"random.torch": np.array([start]), "model.weight": np.full(2, start)}
    digests.watch(lambda: state)
    for step in range(start + 1, stop + 1):
        ids, content, loss = [step], np.full(3, step), 1 / step
        if step == at and wrong == "order":
            ids = [step + 1]
        if step == at and wrong == "content":
            content = content + 1
        if step >= at and wrong == "loss":
            loss += 1
        digests.log(step, ids, [content])
        digests.log_metrics(step, [{"loss": loss}])
        state["random.torch"], state["model.weight"] = np.array([step]), np.full(2, step)
        if step == at and wrong in state:
            state[wrong] = state[wrong] + 1
        if step % 5 == 0:
            digests.digest_state(step)
            digests.flush()
    digests.close()
    return results


def test_equal_steps_are_counted(tmp_path: Path) -> None:
    assert run_steps(tmp_path, 1, 0, 38) == []
    (result,) = run_steps(tmp_path, 2, 20, 60)
    assert (result.start_step, result.last_step, result.difference) == (20, 38, None)
    assert str(result) == (
        "resumed at batch 20; batches 21 to 38 are trained again: identical (18 compared)"
    )


def test_run_without_repeated_steps_is_not_called_identical(tmp_path: Path) -> None:
    run_steps(tmp_path, 1, 0, 20)
    (result,) = run_steps(tmp_path, 2, 20, 25)
    assert str(result) == "resumed at batch 20; 0 batches replayed: not compared"


@pytest.mark.parametrize(
    ("wrong", "at", "expected"),
    [
        ("order", 23, "step 23, record order"),
        ("content", 23, "step 23, record content"),
        ("loss", 24, "step 24, loss"),
        ("model.weight", 25, "step 25, tensor, model.weight"),
        ("random.torch", 25, "step 25, random draw, random.torch"),
    ],
)
def test_first_difference_is_named(tmp_path: Path, wrong: str, at: int, expected: str) -> None:
    run_steps(tmp_path, 1, 0, 38)
    (result,) = run_steps(tmp_path, 2, 20, 60, wrong=wrong, at=at)
    assert str(result).endswith(f"differ from the earlier run: {expected}")
    fields: dict[str, Any] = {"start_step": 20, "last_step": 38, "num_compared": 5}
    assert {name: getattr(result, name) for name in fields} == fields


def test_third_run_is_compared_with_the_first(tmp_path: Path) -> None:
    run_steps(tmp_path, 1, 0, 38)
    run_steps(tmp_path, 2, 20, 30, wrong="loss", at=22)
    (result,) = run_steps(tmp_path, 3, 20, 60, wrong="loss", at=22)
    assert "step 22, loss" in str(result)
    newest = read_digests(tmp_path)
    assert newest is not None
    assert newest.facts["run_id"] == 3
