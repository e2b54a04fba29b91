"""What a person sees of a search whose output is no terminal, and how far it says it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_command import Detcore

SPACE = {"rate": {"type": "double", "minval": 0.0, "maxval": 1.0}}
SCRIPT = """
import sys, time
from pathlib import Path
from detcore import core

with core.init() as context:
    trial_id, rate = context.info.trial_id, context.info.hparams["rate"]
    print("a warning of each trial", file=sys.stderr, flush=True)
    for operation in context.searcher.operations():
        for step in range(1, operation.length + 1):
            print("a line of step", step, flush=True)
            if trial_id == 2 and step == 5:
                raise ValueError("trial 2 cannot")
            if step == 10 and Path("hold").exists():
                Path(f"holding-{trial_id}").touch()
                while not Path("go").exists():
                    time.sleep(0.05)
            context.train.report_training_metrics(step, {"loss": rate})
            if step % 5 == 0:
                with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    (path / "state").touch()
        context.train.report_validation_metrics(step, {"val_loss": rate})
        operation.report_completed(rate)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    return folder


def config(detcore: Detcore, trials: int, **changes: object) -> Path:
    """Write a random search of trials of 10 batches."""
    searcher = {
        "name": "random", "metric": "val_loss", "max_trials": trials,
        "max_length": {"batches": 10},
    }  # fmt: skip
    return detcore.config(
        entrypoint="python3 train.py",
        hyperparameters=SPACE,
        searcher=searcher,
        max_restarts=1,
        **changes,
    )


def test_a_few_lines_for_each_trial(detcore: Detcore, folder: Path) -> None:
    finished = detcore("run", config(detcore, 5), folder)
    assert finished.code == 0, finished.stdout + finished.stderr
    text = finished.stdout
    for trial_id in (1, 3, 4, 5):
        whole = [line for line in text.splitlines() if not line.startswith("search: ")]
        lines = [line for line in whole if f"trial {trial_id}" in line]
        (started,) = [line for line in lines if f", trial {trial_id}: from the start" in line]
        (ended,) = [line for line in lines if line.startswith(f"trial {trial_id}: completed")]
        assert lines.index(started) < lines.index(ended)
        # The first one's warning, and where its lines are; the summary.
        assert len(lines) <= 6, lines
    assert "a line of step" not in text
    assert "checkpoint saved" not in text
    assert text.count("a warning of each trial") == 1
    assert text.count("detcore trial logs 1") == 1
    # Of the one that failed, each start, why, and the end of its traceback.
    assert text.count("[trial 2] ValueError: trial 2 cannot") == 1
    assert "trial 2 failed: ValueError: trial 2 cannot. It starts again" in text
    assert "trial 2: error" in text
    # A slow machine prints more summary lines, and the one traceback is of any length.
    lines = [line for line in text.splitlines() if not line.startswith(("search: ", "[trial 2]"))]
    assert len(lines) < 28, lines


def test_trials_under_way_count_as_far_as_they_are(detcore: Detcore, folder: Path) -> None:
    (folder / "hold").touch()
    (folder / "train.py").write_text(SCRIPT.replace("trial_id == 2", "False"))
    process = detcore.start("run", config(detcore, 4), folder, "--max-slots", 2)
    detcore.wait_for(lambda: len(list(folder.glob("holding-*"))) == 2)

    def shown() -> str:
        return detcore("experiment", "list").stdout

    # 18 of 40 batches, and no trial has ended.
    detcore.wait_for(lambda: "RUNNING 45%" in shown())
    (folder / "go").touch()
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0, stdout
    assert "COMPLETED" in shown()
