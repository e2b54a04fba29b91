"""Killed workers, and models loaded from checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from _lab import Lab
from toy_command import Detcore

from detcore.errors import CheckpointNotFoundError, InvalidCheckpointError
from detcore_testing import DetcoreCommand
from detcore_torch import (
    load_model_from_checkpoint_path,
    load_trial_from_checkpoint_path,
    load_weights_from_checkpoint_path,
)

MODEL = Path(__file__).parent / "model"


@pytest.mark.cold
def test_killed_worker_restarts_trial(
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
            "data_ledger": True,
            "resources": {"slots_per_trial": 2},
        })  # fmt: skip
        result = detcore("run", config, MODEL, "--json", timeout_s=180)
        assert result.code == 0, result.output
        assert (tmp_path / "died").exists()
        assert result.summary["trials"][0]["steps_completed"] == 12
        assert "rank 1" in result.output, result.output
        assert "SIGKILL" in result.output, result.output
        verified = detcore("data", "verify", 1)
        assert verified.code == 0, verified.output
        assert "none twice, none never, across 1 restart" in verified.output
        assert not detcore.leftovers()


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of a trial, with the trial's code."""
    monkeypatch.syspath_prepend(str(MODEL))
    from model_def import LineTrial as ModelTrial

    lab = Lab(ModelTrial, learning_rate=0.05)
    folder = lab.train(3).save(tmp_path / "checkpoint")
    shutil.copytree(MODEL, folder / "code", ignore=shutil.ignore_patterns("__pycache__"))
    record = {"framework": "torch", "trial_class": "model_def:LineTrial", "config": {},
              "hparams": lab.context.get_hparams()}  # fmt: skip
    (folder / "trial.json").write_text(json.dumps(record))
    return folder


def test_load_model_restores_weights(checkpoint: Path) -> None:
    from safetensors.torch import load_file

    state = load_file(checkpoint / "model.safetensors")
    model = load_model_from_checkpoint_path(str(checkpoint), tags=["any"])
    assert not model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    trial = load_trial_from_checkpoint_path(checkpoint)
    assert type(trial).__name__ == "LineTrial"
    local = torch.nn.Linear(3, 1).double()
    assert load_weights_from_checkpoint_path(checkpoint, local) is local
    assert torch.equal(local.weight, state["weight"])


def test_load_model_uses_map_location(checkpoint: Path) -> None:
    model = load_model_from_checkpoint_path(checkpoint, map_location="meta")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_load_model_rejects_other_directories(
    checkpoint: Path,
) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"the directory .* does not exist"):
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
    (checkpoint / "trial.json").unlink()
    with pytest.raises(InvalidCheckpointError, match=r"(?s)no trial\.json.*the framework"):
        load_model_from_checkpoint_path(checkpoint)


STATES = ("optimizer.json", "torch.json", "worker.json")


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a checkpoint with training state."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in [*folder.glob("*.safetensors"), *map(folder.joinpath, STATES)]
    }


@pytest.mark.long
def test_run_killed_twice_is_bit_exact(
    tmp_path: Path,
) -> None:
    """The number of loader processes differs at each start; see `FullTrial`."""
    with Detcore(tmp_path) as detcore:
        settings = detcore.config(
            entrypoint="model_def:FullTrial",
            hyperparameters={"global_batch_size": 8, "learning_rate": 0.05, "pause_s": 0.05},
            optimizations={"aggregation_frequency": 3},
            min_checkpoint_period={"batches": 5},
            data_ledger=True,
        )
        straight = detcore("run", settings, MODEL, "--json")
        assert straight.code == 0, straight.output
        before = len(detcore.committed())
        process = detcore.start("run", settings, MODEL)
        for kill in (1, 2):
            due = before + 2 * kill
            detcore.wait_for(lambda due=due: len(detcore.committed()) >= due, 120)
            process.kill()
            process.communicate(timeout=60)
            process = detcore.start("run", "--resume", 2, "--json")
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
        summaries = straight.summary, json.loads(stdout.splitlines()[-1])
        uuids = [summary["trials"][0]["latest_checkpoint"] for summary in summaries]
        expected, parts = (files_of(detcore.home / "checkpoints" / uuid) for uuid in uuids)
        assert len(expected) >= 5
        assert parts == expected
        verified = detcore("data", "verify", 2)
        assert verified.code == 0, verified.output
        assert "2 restarts" in verified.output
