"""Trials for debugging in this process."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_command import MODEL_DIR, TOY_PLUGIN

from detcore import Trial
from detcore.errors import (
    CheckpointNotFoundError,
    ConfigError,
    InvalidExperimentError,
    PluginNotFoundError,
)
from detcore_replay import create_trial_instance

CONFIG: dict[str, Any] = {
    "hyperparameters": {
        "global_batch_size": 8,
        "learning_rate": {"type": "log", "base": 10, "minval": -3, "maxval": -1},
        "net": {"width": {"type": "int", "minval": 1, "maxval": 9}, "depth": 2},
    },
    "reproducibility": {"experiment_seed": 5},
}


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Trial]]:
    """A trial class of the toy framework in the current directory."""
    monkeypatch.syspath_prepend(str(TOY_PLUGIN))
    monkeypatch.syspath_prepend(str(MODEL_DIR))
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(MODEL_DIR)
    monkeypatch.delitem(sys.modules, "model_def", raising=False)
    yield importlib.import_module("model_def").Line
    del sys.modules["model_def"]  # otherwise processes of other tests would inherit it


def test_hparams_equal_first_trial(line: type[Trial], tmp_path: Path) -> None:
    trial = create_trial_instance(line, str(tmp_path / "kept"), CONFIG)
    context = trial.context
    assert context.get_per_slot_batch_size() == 8
    assert 1e-3 <= context.get_hparam("learning_rate") <= 1e-1
    again = create_trial_instance(line, tmp_path / "kept", CONFIG)
    assert again.context.get_hparams() == context.get_hparams()
    assert again.context.get_trial_seed() == context.get_trial_seed()
    assert context.get_experiment_config()["name"] == "Line"
    assert context.get_tensorboard_path() == tmp_path / "kept" / "tensorboard"
    assert not (tmp_path / "home").exists()


def test_checkpoints_are_saved_and_restored(line: type[Trial], tmp_path: Path) -> None:
    hparams = {"learning_rate": 0.05, "global_batch_size": 8}
    first: Any = create_trial_instance(line, tmp_path, hparams=hparams)
    assert first.context.checkpoints.latest is None
    with pytest.raises(CheckpointNotFoundError, match="checkpoint not found"):
        first.context.checkpoints.restore()
    untrained = first.context.checkpoints.validate()["val_loss"]
    state = first.context.checkpoints.save()
    learned = json.loads((state / "toy.json").read_text())
    learned["weights"] = [1.0, -2.0, 0.5]
    (tmp_path / "learned").mkdir()
    (tmp_path / "learned" / "toy.json").write_text(json.dumps(learned))
    first.context.checkpoints.restore(tmp_path / "learned")
    newest = first.context.checkpoints.save(steps_completed=7)

    second: Any = create_trial_instance(line, tmp_path, hparams=hparams)
    checkpoints = second.context.checkpoints
    assert checkpoints.latest == newest
    assert checkpoints.restore() == newest
    assert checkpoints.validate()["val_loss"] < 1e-9 < untrained
    record = json.loads((newest / "trial.json").read_text())
    assert (record["trial_class"], record["framework"]) == ("model_def:Line", "toy")
    assert (record["steps_completed"], record["hparams"]) == (7, hparams)
    assert (newest / "code" / "model_def.py").exists()
    checkpoint = checkpoints.save()
    assert json.loads((checkpoint / "manifest.json").read_text())["steps_completed"] == 7
    checkpoints.close()

    third: Any = create_trial_instance(line, newest, hparams=hparams)  # the checkpoint itself
    assert third.context.checkpoints.latest == newest


def test_hparams_override_first_trial(line: type[Trial], tmp_path: Path) -> None:
    hparams = create_trial_instance(line, tmp_path, CONFIG).context.get_hparams()
    trial = create_trial_instance(line, tmp_path, CONFIG, {"learning_rate": 1.0})
    assert trial.context.get_hparams() == {**hparams, "learning_rate": 1.0}


def test_other_class_is_rejected(line: type[Trial], tmp_path: Path) -> None:
    with pytest.raises(InvalidExperimentError, match="trial_def is 5"):
        create_trial_instance(5, tmp_path)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(PluginNotFoundError, match="no installed plugin trains"):
        create_trial_instance(Trial, tmp_path)
    with pytest.raises(ConfigError, match="searcher"):
        create_trial_instance(line, tmp_path, {"searcher": {"name": "nobodys"}})


def test_random_numbers_equal_worker(line: type[Trial], tmp_path: Path) -> None:
    create_trial_instance(line, tmp_path, CONFIG)
    number = np.random.random()
    create_trial_instance(line, tmp_path, CONFIG)
    assert np.random.random() == number
