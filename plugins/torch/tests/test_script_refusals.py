"""Settings of Lightning and Accelerate that prevent an exact resume."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from detcore.errors import InvalidExperimentError

# Importing the libraries takes longer than these tests.
pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore")]


class _Endless(IterableDataset):  # type: ignore[misc]  # PyTorch has no types here
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return an empty state."""

    def __iter__(self) -> Any:
        while True:
            yield torch.zeros(2)


def _rows() -> TensorDataset:
    return TensorDataset(torch.zeros(8, 2))


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fast_dev_run": True}, "fast_dev_run or overfit_batches"),
        ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs"),
        ({"max_epochs": -1}, "neither max_steps nor max_epochs"),
        ({"max_epochs": 0}, "neither max_steps nor max_epochs"),
        ({"limit_val_batches": 0}, "does not validate"),
        ({"data": DataLoader(_Endless(), 2)}, "has no length"),
        ({"data": [DataLoader(_rows(), 2)] * 2}, "Combine several data sets"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsupported_lightning_trainer_is_rejected(settings: dict[str, Any], message: str) -> None:
    import lightning
    from lightning.pytorch.demos.boring_classes import BoringModel

    from detcore_torch.for_lightning import fit

    data = settings.pop("data", DataLoader(_rows(), 2))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    options = {"max_epochs": 1, "accelerator": "cpu", "num_sanity_val_steps": 0, **quiet}
    trainer = lightning.Trainer(**{**options, **settings})
    with pytest.raises(InvalidExperimentError, match=re.escape(message)):
        fit(trainer, BoringModel(), data, DataLoader(_rows(), 2))


def test_unsupported_accelerate_setup_is_rejected() -> None:
    from accelerate import Accelerator

    from detcore_torch.for_accelerate import training

    accelerator = Accelerator(cpu=True)
    plain = DataLoader(_rows(), 2)
    endless = accelerator.prepare(DataLoader(_Endless(), 2))  # gets a dispatcher
    for loader, lengths, message in (
        (plain, {"epochs": 1}, "accelerator.prepare returned"),
        (endless, {"max_steps": 4}, "dispatch_batches=False"),
        (accelerator.prepare(plain), {}, "epochs=None, max_steps=None"),
    ):
        with (
            pytest.raises(InvalidExperimentError, match=re.escape(message)),
            training(accelerator, loader, validate=dict, **lengths),
        ):
            pass
