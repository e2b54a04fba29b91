"""A classifier in the style of Determined 0.17, with a schedule and random augmentation."""

from typing import Any, Dict, cast

import torch
from determined.pytorch import (
    DataLoader,
    LRScheduler,
    PyTorchCallback,
    PyTorchTrial,
    PyTorchTrialContext,
    TorchData,
)
from toy_data import points


class CountEpochs(PyTorchCallback):
    def __init__(self) -> None:
        self.epochs = 0

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        self.epochs += 1

    def state_dict(self) -> Dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self.epochs = state_dict["epochs"]


class Trial(PyTorchTrial):
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = self.context.wrap_model(
            torch.nn.Sequential(
                torch.nn.Linear(8, 16),
                torch.nn.BatchNorm1d(16),
                torch.nn.ReLU(),
                torch.nn.Dropout(self.context.get_hparam("dropout")),
                torch.nn.Linear(16, 3),
            )
        )
        self.optimizer = self.context.wrap_optimizer(
            torch.optim.SGD(
                self.model.parameters(), lr=self.context.get_hparam("learning_rate"), momentum=0.9
            )
        )
        self.schedule = self.context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.7),
            LRScheduler.StepMode.STEP_EVERY_EPOCH,
        )

    def build_callbacks(self) -> Dict[str, PyTorchCallback]:
        return {"epochs": CountEpochs()}

    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(points(), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(points(30), batch_size=self.context.get_per_slot_batch_size())

    def train_batch(self, batch: TorchData, epoch_idx: int, batch_idx: int) -> Dict[str, Any]:
        features, labels = cast(Any, batch)
        noisy = features + 0.1 * torch.randn_like(features)
        loss = torch.nn.functional.cross_entropy(self.model(noisy), labels)
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer, lambda params: torch.nn.utils.clip_grad_norm_(params, 1.0)
        )
        return {"loss": loss, "lr": self.schedule.get_last_lr()[0]}

    def evaluate_batch(self, batch: TorchData) -> Dict[str, Any]:
        features, labels = cast(Any, batch)
        scores = self.model(features)
        return {
            "validation_loss": torch.nn.functional.cross_entropy(scores, labels).item(),
            "accuracy": (scores.argmax(1) == labels).float().mean().item(),
        }
