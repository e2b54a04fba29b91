"""A trial that reports nothing for ``hang_timeout_s`` is ended, with its stacks in the log."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_command import Detcore

MODEL = """
import time
import numpy as np
from detcore_toy import ToyTrial

class Hanging(ToyTrial):
    def build_data(self):
        x = np.ones((96, 3))
        return x, x.sum(1)

    def on_batch(self, step):
        if step == 24:
            self.wait_for_ever()

    def wait_for_ever(self):
        time.sleep(3600)
"""


@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_hanging_trial_is_killed(detcore: Detcore, tmp_path: Path, num_workers: int) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "model_def.py").write_text(MODEL)
    config = detcore.config(
        entrypoint="model_def:Hanging",
        hang_timeout_s=5,
        max_restarts=0,
        resources={"slots_per_trial": num_workers},
    )
    finished = detcore.run_failing("run", config, tmp_path / "code")
    assert "it hangs: it reported nothing for 5 s (hang_timeout_s)" in finished.output
    log = detcore("trial", "logs", "1").stdout
    assert log.count("in wait_for_ever") == num_workers
