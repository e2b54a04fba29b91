"""Scripts whose newest checkpoint is damaged or missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
from detcore import core
with core.init(resume=True{storage}) as context:
    steps = 0
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            steps = int((path / "steps").read_text())
    print("from", steps)
    while steps < {length}:
        steps += 1
        context.train.report_training_metrics(steps, {{"loss": 1.0}})
        with context.checkpoint.store_path({{"steps_completed": steps}}) as (path, _):
            (path / "steps").write_text(f"{{steps:07}}")
    raise SystemExit(75)
"""
DAMAGES: dict[str, Callable[[Path], object]] = {
    "changed": lambda folder: (folder / "steps").write_text("0000009"),
    "cut": lambda folder: (folder / "steps").write_text("3"),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "deleted": shutil.rmtree,
}


def checkpoints(home: Any) -> list[Any]:
    with home.database() as database:
        return list(database.list_checkpoints())


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_script_resumes_from_the_checkpoint_before(home: Any, damage: str) -> None:
    home.run(SCRIPT.format(length=3, storage=""))
    for record in checkpoints(home)[1:]:
        DAMAGES[damage](home.path / "checkpoints" / record.uuid)
    code, stdout, stderr = home.run(SCRIPT.format(length=2, storage=""))
    assert (code, stdout) == (75, "from 1\n"), stderr
    first, second, third, *_ = checkpoints(home)
    assert [record.state for record in (first, second, third)] == ["COMPLETED"] + ["DAMAGED"] * 2
    assert f"checkpoint {third.uuid} is damaged: " in stderr
    assert f"The trial resumes from the one before: {first.uuid}, 1 batches" in stderr


def test_missing_checkpoints_are_not_trained_again(home: Any) -> None:
    home.run(SCRIPT.format(length=2, storage=""))
    (home.path / "checkpoints").rename(home.path / "away")
    code, _, stderr = home.run(SCRIPT.format(length=2, storage=""))
    assert code == 1
    assert "trial 1 cannot resume: none of its 2 checkpoints" in stderr
    shutil.rmtree(home.path / "checkpoints")
    (home.path / "away").rename(home.path / "checkpoints")
    assert home.run(SCRIPT.format(length=2, storage=""))[1] == "from 2\n"
