"""The contract of a framework plugin, held against this one, with three kinds of estimators."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from detcore_testing import FrameworkSuite


class TestSGDClassifier(FrameworkSuite):
    """A linear classifier with averaging: two of its arrays are one under two names."""

    framework = "sklearn"
    model_dir = Path(__file__).parent / "model"
    entrypoint = "model_def:Digits"
    broken_entrypoint = "model_def:BrokenDigits"
    stop_entrypoint = "model_def:StoppingDigits"
    hyperparameters: ClassVar[Mapping[str, Any]] = {"global_batch_size": 16, "alpha": 0.001}
    changed_hyperparameters: ClassVar[Mapping[str, Any]] = {"alpha": 0.1}
    # scikit-learn itself rejects it, in the first batch.
    invalid_hyperparameters: ClassVar[Mapping[str, Any]] = {"alpha": -1.0}
    declined: ClassVar[Mapping[str, str]] = {
        "several-workers": "partial_fit takes its step at once and shows no gradient to share",
    }
    batches_per_epoch = 30
    batch_counter = "step"

    def read_state(self, checkpoint: Path) -> Mapping[str, npt.NDArray[Any]]:
        with np.load(checkpoint / "arrays.npz", allow_pickle=False) as saved:
            state = {name: saved[name] for name in saved.files}
        found = json.loads((checkpoint / "estimator.json").read_text(encoding="utf-8"))
        numbers = {key: value for key, value in found["fitted"]["dict"] if _is_number(value)}
        numbers["step"] = found["training"]["step"]
        words = found["training"]["random"]["python"][1]
        return (
            state
            | {key: np.array(value) for key, value in numbers.items()}
            | {"generator": np.array(words)}
        )

    def callback_events(self, journal: Path) -> Sequence[str]:
        return journal.read_text(encoding="utf-8").split()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
