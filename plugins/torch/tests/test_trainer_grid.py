"""A grid over arguments of a `Trainer`, as a user runs it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from detcore_testing import DetcoreCommand, Finished

SCRIPT = """
import torch
from transformers import Trainer, TrainingArguments, set_seed

from detcore_torch.for_transformers import train


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x, labels):
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


set_seed(1)
x = torch.randn(32, 4)
rows = [{"x": row, "labels": int(row.sum() > 0)} for row in x]
trainer = Trainer(
    Network(),
    TrainingArguments("output", report_to="none", use_cpu=True, disable_tqdm=True),
    train_dataset=rows[:24],
    eval_dataset=rows[24:],
)
train(trainer)
"""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def run_grid(detcore: DetcoreCommand, name: str, values: list[float]) -> Finished:
    model = detcore.folder / "model"
    model.mkdir()
    (model / "train.py").write_text(SCRIPT)
    config: dict[str, Any] = {
        "name": "grid",
        "entrypoint": "python3 train.py",
        "hyperparameters": {name: {"type": "categorical", "vals": values}},
        "searcher": {"name": "grid", "metric": "eval_loss", "max_length": {"batches": 4}},
        "max_restarts": 0,
    }
    return detcore("run", detcore.write_config(config), model, "--json", timeout_s=300)


def test_argument_read_by_the_trainer_is_refused_with_the_line_to_write(tmp_path: Path) -> None:
    with DetcoreCommand(tmp_path) as detcore:
        finished = run_grid(detcore, "label_smoothing_factor", [0.0, 0.3])
    trials = finished.summary["trials"]
    assert sorted(trial["state"] for trial in trials) == ["COMPLETED", "ERROR"], finished.output
    name = "label_smoothing_factor"
    assert f"the hyperparameter '{name}' is 0.3" in finished.output, finished.output
    line = f'TrainingArguments(..., {name}=hyperparameters({name}=...)["{name}"])'
    assert line in re.sub(r"\s+", " ", finished.output)


def test_learning_rates_give_different_losses(tmp_path: Path) -> None:
    with DetcoreCommand(tmp_path) as detcore:
        finished = run_grid(detcore, "learning_rate", [0.001, 0.1])
    assert finished.code == 0, finished.output
    losses = [trial["best_validation"] for trial in finished.summary["trials"]]
    assert len(set(losses)) == 2, finished.output
