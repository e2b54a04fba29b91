"""What only a run shows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from _lab import Lab
from detcore_torch import (
    load_model_from_checkpoint_path,
    load_trial_from_checkpoint_path,
    load_weights_from_checkpoint_path,
)

from detcore.errors import CheckpointNotFoundError, InvalidCheckpointError
from detcore_testing import DetcoreCommand

MODEL = Path(__file__).parent / "model"


def test_a_worker_that_is_killed_ends_the_others_and_the_trial_starts_again(
    tmp_path: Path,
) -> None:
    with DetcoreCommand(tmp_path) as detcore:
        config = detcore.write_config({
            "name": "dying",
            "entrypoint": "model_def:DyingTrial",
            "hyperparameters": {
                "global_batch_size": 8, "learning_rate": 0.05, "died": str(tmp_path / "died")
            },
            "searcher": {"name": "single", "metric": "val_loss", "max_length": {"batches": 12}},
            "min_checkpoint_period": {"batches": 4},
            "scheduling_unit": 4,
            "max_restarts": 1,
            "resources": {"slots_per_trial": 2},
        })  # fmt: skip
        done = detcore("run", config, MODEL, "--json", timeout_s=180)
        assert done.code == 0, done.output
        assert (tmp_path / "died").exists()
        assert done.summary["trials"][0]["steps_completed"] == 12
        assert "rank 1" in done.output, done.output
        assert "SIGKILL" in done.output, done.output
        assert not detcore.leftovers()


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint as a trial leaves it, with the trial's code."""
    monkeypatch.syspath_prepend(str(MODEL))
    from model_def import LineTrial as ModelTrial

    lab = Lab(ModelTrial, learning_rate=0.05)
    folder = lab.train(3).save(tmp_path / "checkpoint")
    shutil.copytree(MODEL, folder / "code", ignore=shutil.ignore_patterns("__pycache__"))
    record = {"framework": "torch", "trial_class": "model_def:LineTrial", "config": {},
              "hparams": lab.context.get_hparams()}  # fmt: skip
    (folder / "trial.json").write_text(json.dumps(record))
    return folder


def test_a_checkpoint_gives_the_trials_model_with_its_weights(checkpoint: Path) -> None:
    from safetensors.torch import load_file

    saved = load_file(checkpoint / "model.safetensors")
    model = load_model_from_checkpoint_path(str(checkpoint), tags=["any"])
    assert not model.training
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    trial = load_trial_from_checkpoint_path(checkpoint)
    assert type(trial).__name__ == "LineTrial"
    own = torch.nn.Linear(3, 1).double()
    assert load_weights_from_checkpoint_path(checkpoint, own) is own
    assert torch.equal(own.weight, saved["weight"])


def test_what_is_no_checkpoint_of_a_pytorch_trial_is_told(checkpoint: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="there is no folder"):
        load_model_from_checkpoint_path(checkpoint / "nowhere")
    record = json.loads((checkpoint / "trial.json").read_text())
    shutil.rmtree(checkpoint / "code")
    with pytest.raises(InvalidCheckpointError, match="load_weights_from_checkpoint_path"):
        load_trial_from_checkpoint_path(checkpoint)
    (checkpoint / "trial.json").write_text(json.dumps({**record, "framework": "keras"}))
    with pytest.raises(InvalidCheckpointError, match="of the framework 'keras'"):
        load_model_from_checkpoint_path(checkpoint)
    (checkpoint / "trial.json").write_text("{")
    with pytest.raises(InvalidCheckpointError, match=r"trial\.json is damaged"):
        load_model_from_checkpoint_path(checkpoint)
