"""A transformer with dropout in its attention, fused AdamW and a cycle over the training."""

import torch
from torch import nn

from detcore_torch import DataLoader, LRScheduler, PyTorchTrial

EPOCHS = 3
g = torch.Generator().manual_seed(1)
tokens = torch.randint(0, 32, (96, 12), generator=g)
classes = tokens[:, :6].sum(1) % 4


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 4)

    def forward(self, ids):
        return self.head(self.encoder(self.embedding(ids)).mean(1))


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(Encoder())
        self.optimizer = context.wrap_optimizer(
            torch.optim.AdamW(self.model.parameters(), lr=5e-3, fused=True)
        )
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 5e-3, total_steps=30),
            LRScheduler.StepMode.STEP_EVERY_BATCH,
        )

    def build_training_data_loader(self):
        return DataLoader(list(zip(tokens, classes)), batch_size=16, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(list(zip(tokens, classes)), batch_size=48)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1], label_smoothing=0.1)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"val_loss": nn.functional.cross_entropy(self.model(batch[0]), batch[1])}
