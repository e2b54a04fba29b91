"""`find_checkpoint_directory` and `read_trial_file`, with which plugins load their checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from detcore.errors import CheckpointNotFoundError, InvalidCheckpointError
from detcore.trial import find_checkpoint_directory, read_trial_file

WRITTEN = {
    "framework": "toy",
    "trial_class": "model_def:Toy",
    "config": {"name": "first", "hyperparameters": {"rate": {"type": "double"}}},
    "hparams": {"rate": 0.5},
}


def test_trial_file_contains_trial_values(tmp_path: Path) -> None:
    (tmp_path / "trial.json").write_text(json.dumps(WRITTEN))
    record = read_trial_file(find_checkpoint_directory(str(tmp_path)), "toy")
    assert record["config"] == {"name": "first", "hyperparameters": {"rate": 0.5}}
    assert record["trial_class"] == "model_def:Toy"


def test_missing_checkpoint_folder_suggests_download(
    tmp_path: Path,
) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"the directory .*gone(.|\n)*download UUID"):
        find_checkpoint_directory(tmp_path / "gone")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (None, r"has no trial\.json"),
        ("{", r"trial\.json is damaged"),
        ("[1]", r"trial\.json is damaged"),
        (json.dumps({**WRITTEN, "hparams": None}), r"trial\.json is damaged"),
        (json.dumps({**WRITTEN, "config": 3}), r"trial\.json is damaged"),
        (json.dumps({"framework": "toy"}), r"trial\.json is damaged.*trial_class"),
        (json.dumps({**WRITTEN, "framework": "other"}), "framework 'other'.*not of 'toy'"),
    ],
)
def test_invalid_trial_files_are_refused(tmp_path: Path, written: Any, message: str) -> None:
    if written is not None:
        (tmp_path / "trial.json").write_text(written)
    with pytest.raises(InvalidCheckpointError, match=message):
        read_trial_file(tmp_path, "toy")
