"""Contract tests for the framework plugin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from detcore_testing import FrameworkSuite


class TestSGDClassifier(FrameworkSuite):
    """Linear classifier with averaging, which has one array under two names."""

    framework = "sklearn"
    model_dir = Path(__file__).parent / "model"
    entrypoint = "model_def:Digits"
    broken_entrypoint = "model_def:BrokenDigits"
    stop_entrypoint = "model_def:StoppingDigits"
    hyperparameters: ClassVar[Mapping[str, Any]] = {"global_batch_size": 16, "alpha": 0.001}
    changed_hyperparameters: ClassVar[Mapping[str, Any]] = {"alpha": 0.1}
    # scikit-learn rejects this value in the first batch.
    invalid_hyperparameters: ClassVar[Mapping[str, Any]] = {"alpha": -1.0}
    declined: ClassVar[Mapping[str, str]] = {
        "several-workers": "partial_fit exposes no gradients that workers could exchange",
    }
    batches_per_epoch = 30
    batch_counter = "step"

    def read_state(self, checkpoint: Path) -> Mapping[str, npt.NDArray[Any]]:
        with np.load(checkpoint / "arrays.npz", allow_pickle=False) as arrays:
            state = {name: arrays[name] for name in arrays.files}
        fields = json.loads((checkpoint / "estimator.json").read_text(encoding="utf-8"))
        numbers = {key: value for key, value in fields["fitted"]["dict"] if _is_number(value)}
        numbers["step"] = fields["training"]["step"]
        words = fields["training"]["random"]["python"][1]
        return (
            state
            | {key: np.array(value) for key, value in numbers.items()}
            | {"generator": np.array(words)}
        )

    def callback_events(self, journal: Path) -> Sequence[str]:
        return journal.read_text(encoding="utf-8").split()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
