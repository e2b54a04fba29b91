"""The head trains first; the backbone is unfrozen in the third epoch with a smaller rate."""

import torch
from torch import nn

from detcore_torch import DataLoader, PyTorchCallback, PyTorchTrial

EPOCHS = 5
g = torch.Generator().manual_seed(8)
x = torch.randn(96, 6, generator=g)
y = (x[:, :2].prod(1) > 0).float().unsqueeze(1)


class Unfreeze(PyTorchCallback):
    def __init__(self, trial):
        self.trial = trial

    def on_training_epoch_start(self, epoch_idx):
        if epoch_idx == 2:
            for parameter in self.trial.model.backbone.parameters():
                parameter.requires_grad = True
            group = {"params": self.trial.model.backbone.parameters(), "lr": 1e-3}
            self.trial.optimizer.add_param_group(group)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.head = nn.Linear(16, 1)

    def forward(self, inputs):
        return self.head(self.backbone(inputs))


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(Network())
        self.model.backbone.requires_grad_(False)
        self.optimizer = context.wrap_optimizer(
            torch.optim.Adam(self.model.head.parameters(), 0.01)
        )
        self.criterion = nn.BCEWithLogitsLoss()

    def build_callbacks(self):
        return {"unfreeze": Unfreeze(self)}

    def build_training_data_loader(self):
        return DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32)

    def train_batch(self, batch, epoch_idx, batch_idx):
        features, labels = batch
        loss = self.criterion(self.model(features), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        features, labels = batch
        return {"val_loss": self.criterion(self.model(features), labels)}
