"""One model and one optimizer, in the style of Determined 0.12."""

from typing import Any, Dict, Sequence, Union, cast

import determined as det
import torch
from determined.pytorch import (
    ClipGradsL2Norm,
    DataLoader,
    LRScheduler,
    PyTorchTrial,
    reset_parameters,
)
from torch import nn
from toy_data import points

TorchData = Union[Dict[str, torch.Tensor], Sequence[torch.Tensor], torch.Tensor]


class Trial(PyTorchTrial):
    """The framework calls backward and updates the model."""

    def __init__(self, context: det.TrialContext) -> None:
        self.context = context

    def build_model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
        reset_parameters(model)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.context.get_hparam("learning_rate"))

    def create_lr_scheduler(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
        return LRScheduler(schedule, step_mode=LRScheduler.StepMode.STEP_EVERY_EPOCH)

    def build_callbacks(self) -> Dict[str, Any]:
        return {"clip": ClipGradsL2Norm(0.5)}

    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(points(), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(points(30), batch_size=self.context.get_per_slot_batch_size())

    def train_batch(
        self, batch: TorchData, model: nn.Module, epoch_idx: int, batch_idx: int
    ) -> Dict[str, torch.Tensor]:
        batch = cast(Any, batch)
        features, labels = batch
        scores = model(features)
        loss = nn.functional.cross_entropy(scores, labels)
        return {"loss": loss, "train_error": (scores.argmax(1) != labels).float().mean()}

    def evaluate_batch(self, batch: TorchData, model: nn.Module) -> Dict[str, Any]:
        """Return the loss and the accuracy."""
        features, labels = cast(Any, batch)
        scores = model(features)
        loss = nn.functional.cross_entropy(scores, labels)
        return {"validation_loss": loss, "accuracy": (scores.argmax(1) == labels).float().mean()}
