"""Scripts whose newest checkpoint is damaged or missing."""

from __future__ import annotations

import shutil
from typing import Any

SCRIPT = """
from detcore import core
with core.init(resume=True) as context:
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


def checkpoints(home: Any) -> list[Any]:
    with home.database() as database:
        return list(database.list_checkpoints())


def test_script_resumes_from_previous_checkpoint(home: Any) -> None:
    home.run(SCRIPT.format(length=3))
    _, damaged, deleted = (home.path / "checkpoints" / each.uuid for each in checkpoints(home))
    (damaged / "steps").write_text("0000009")
    shutil.rmtree(deleted)
    code, stdout, stderr = home.run(SCRIPT.format(length=2))
    assert (code, stdout) == (75, "from 1\n"), stderr
    first, second, third, *_ = checkpoints(home)
    assert [record.state for record in (first, second, third)] == ["COMPLETED"] + ["DAMAGED"] * 2
    assert f"checkpoint {third.uuid} is damaged: " in stderr
    assert f"The trial resumes from the previous checkpoint: {first.uuid}, 1 batches" in stderr


def test_script_refuses_to_resume_without_checkpoints(home: Any) -> None:
    home.run(SCRIPT.format(length=2))
    (home.path / "checkpoints").rename(home.path / "away")
    code, _, stderr = home.run(SCRIPT.format(length=2))
    assert code == 1
    assert "trial 1 cannot resume: all of its 2 checkpoints" in stderr
    shutil.rmtree(home.path / "checkpoints")
    (home.path / "away").rename(home.path / "checkpoints")
    assert home.run(SCRIPT.format(length=2))[1] == "from 2\n"
