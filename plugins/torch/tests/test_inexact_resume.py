"""A run that is killed and resumed reports whether it is exact."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from detcore_testing import DetcoreCommand

CODE = Path(__file__).parent / "determined_code"
# Not saved: an attribute of the class, which changes the noise.
INEXACT = """
from model_def import *


class Inexact(Trial):
    seen = 0

    def train_batch(self, batch, epoch_idx, batch_idx):
        Inexact.seen += 1
        features, labels = batch
        return super().train_batch((features * Inexact.seen, labels), epoch_idx, batch_idx)


class Forgetful(Trial):
    def __init__(self, context):
        super().__init__(context)
        load = self.optimizer.load_state_dict

        def forget(state):
            load(state)
            first = self.optimizer.param_groups[0]["params"][0]
            self.optimizer.state[first]["momentum_buffer"].zero_()

        self.optimizer.load_state_dict = forget
"""


def run_killed(
    folder: Path, name: str, *, moment: str = "TEST_KILL_AT", every: int = 1, **settings: Any
) -> tuple[Any, list[dict[str, Any]]]:
    """Kill a run at batch 44, resume it from batch 15 or 30, and return its output and records.

    With another `moment`, ``TEST_STOP_AT``, the run stops at batch 44 and saves a checkpoint.
    """
    code = folder / "code"
    shutil.copytree(CODE, code, ignore=shutil.ignore_patterns("[!ct]*"))
    (code / "classifier.py").rename(code / "model_def.py")
    (code / "other_def.py").write_text(INEXACT)
    with DetcoreCommand(folder, variables={moment: "44"}) as detcore:
        assert detcore("migrate", code).code == 0
        config = detcore.write_config({
            "name": name,
            "entrypoint": f"{'model_def' if name == 'Trial' else 'other_def'}:{name}",
            "hyperparameters": {"global_batch_size": 4, "learning_rate": 0.05, "dropout": 0.2},
            "searcher": {"name": "single", "metric": "validation_loss",
                         "max_length": {"epochs": 3}},
            "min_checkpoint_period": {"batches": 15},
            "scheduling_unit": 5,
            "reproducibility": {"experiment_seed": 5, "step_digests": every, **settings},
            "max_restarts": 0,
        })  # fmt: skip
        detcore("run", config, code)
    with DetcoreCommand(folder) as detcore:
        resumed = detcore("run", "--resume", 1)
        trial = json.loads(detcore("trial", "describe", 1, "--json").stdout)
    return resumed, trial["resumes"]


def test_exact_resume_is_recorded(tmp_path: Path) -> None:
    resumed, ((record),) = run_killed(tmp_path, "Trial")
    assert resumed.code == 0, resumed.output
    assert "to 40 are trained again: identical" in resumed.output
    assert record["difference"] is None
    assert record["num_compared"] == record["last_step"] - record["start_step"] > 0


@pytest.mark.parametrize("reaction", ["warn", "fail"])
def test_difference_is_reported(tmp_path: Path, reaction: str) -> None:
    resumed, (record,) = run_killed(tmp_path, "Inexact", inexact_resume=reaction)
    assert (resumed.code == 0) is (reaction == "warn"), resumed.output
    assert f"step {record['start_step'] + 1}, loss" in resumed.output
    assert record["difference"]["step"] == record["start_step"] + 1


def test_forgotten_optimizer_slot_is_an_error(tmp_path: Path) -> None:
    resumed, records = run_killed(tmp_path, "Forgetful")
    assert resumed.code == 1, resumed.output
    assert "optimizer.state['0.weight']['momentum_buffer'] was saved and not" in resumed.output
    assert records == []


@pytest.mark.parametrize("every", [1, 10])
def test_batch_after_stop_is_compared(tmp_path: Path, every: int) -> None:
    resumed, (record,) = run_killed(tmp_path, "Trial", moment="TEST_STOP_AT", every=every)
    start = record["start_step"]
    assert f"batches {start + 1} to {start + 1} are trained again: identical" in resumed.output
    assert start % 10
    assert record["num_compared"] == 1


def test_difference_after_stop_is_reported(tmp_path: Path) -> None:
    resumed, (record,) = run_killed(tmp_path, "Inexact", moment="TEST_STOP_AT", every=10)
    assert resumed.code == 0, resumed.output
    assert record["difference"]["step"] == record["start_step"] + 1
