"""A backbone that is unfrozen after the first epoch, class weights and two parameter groups."""

import torch
from torch import nn

from detcore_torch import DataLoader, PyTorchCallback, PyTorchTrial

EPOCHS = 3
g = torch.Generator().manual_seed(6)
x = torch.randn(96, 1, 16, generator=g)
y = (x.mean((1, 2)) > 0.1).long()


class Unfreeze(PyTorchCallback):
    def __init__(self, trial):
        self.trial = trial

    def on_training_epoch_start(self, epoch_idx):
        if epoch_idx == 1:
            backbone = self.trial.model[0]
            backbone.requires_grad_(True)
            self.trial.optimizer.add_param_group({"params": backbone.parameters(), "lr": 1e-3})


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        backbone = nn.Sequential(nn.Conv1d(1, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2))
        head = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(56, 2))
        self.model = context.wrap_model(nn.Sequential(backbone.requires_grad_(False), head))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model[1].parameters(), 0.01))
        weight = torch.tensor([1.0, 2.0], device=context.device)
        self.criterion = nn.CrossEntropyLoss(weight=weight)

    def build_callbacks(self):
        return {"unfreeze": Unfreeze(self)}

    def build_training_data_loader(self):
        return DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=48)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.criterion(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"val_loss": self.criterion(self.model(batch[0]), batch[1])}
