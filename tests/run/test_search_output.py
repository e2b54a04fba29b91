"""How far a search says it is."""

from __future__ import annotations

from toy_command import Detcore

SCRIPT = """
import time
from pathlib import Path
from detcore import core

with core.init() as context:
    trial_id, rate = context.info.trial_id, context.info.hparams["rate"]
    for operation in context.searcher.operations():
        for step in range(1, operation.length + 1):
            if step == 10:
                Path(f"holding-{trial_id}").touch()
                while not Path("go").exists():
                    time.sleep(0.05)
            context.train.report_training_metrics(step, {"loss": rate})
        context.train.report_validation_metrics(step, {"val_loss": rate})
        operation.report_completed(rate)
"""


def test_search_progress_includes_running_trials(detcore: Detcore) -> None:
    folder = detcore.write_code("train.py", SCRIPT)
    searcher = {
        "name": "random", "metric": "val_loss", "max_trials": 4, "max_length": {"batches": 10}
    }  # fmt: skip
    config = detcore.config(
        entrypoint="python3 train.py",
        hyperparameters={"rate": {"type": "double", "minval": 0.0, "maxval": 1.0}},
        searcher=searcher,
    )
    process = detcore.start("run", config, folder, "--max-slots", 2)
    detcore.wait_for(lambda: len(list(folder.glob("holding-*"))) == 2)

    def shown() -> str:
        return detcore("experiment", "list").stdout

    # 18 of 40 batches, and no trial has ended.
    detcore.wait_for(lambda: "RUNNING 45%" in shown())
    (folder / "go").touch()
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0, stdout
    assert "COMPLETED" in shown()
