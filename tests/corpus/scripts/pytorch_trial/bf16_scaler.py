"""Mixed precision on the CPU, with a gradient scaler whose scale grows."""

import torch
from torch import nn
from torch.nn import functional as F

from detcore_torch import DataLoader, PyTorchTrial

EPOCHS = 4
g = torch.Generator().manual_seed(5)
images = torch.rand(112, 1, 8, 8, generator=g)
digits = (images.mean((1, 2, 3)) > 0.5).long()


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(
            nn.Sequential(
                nn.Conv2d(1, 4, 3, padding=1),
                nn.BatchNorm2d(4),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Dropout(0.2),
                nn.Linear(64, 2),
            )
        )
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), 0.01))
        self.scaler = context.wrap_scaler(
            torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=4)
        )

    def build_training_data_loader(self):
        data = torch.utils.data.TensorDataset(images[:96], digits[:96])
        return torch.utils.data.DataLoader(data, batch_size=16, shuffle=True, num_workers=1)

    def build_validation_data_loader(self):
        return DataLoader(torch.utils.data.TensorDataset(images[96:], digits[96:]), batch_size=16)

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(self.model(x), y)
        self.context.backward(self.scaler.scale(loss))
        self.context.step_optimizer(self.optimizer, scaler=self.scaler)
        self.scaler.update()
        return {"loss": loss, "scale": self.scaler.get_scale()}

    def evaluate_batch(self, batch):
        x, y = batch
        return {"val_loss": F.cross_entropy(self.model(x), y)}
