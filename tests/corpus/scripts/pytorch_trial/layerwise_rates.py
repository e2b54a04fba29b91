"""Each layer has its own learning rate, with one cycle over the whole training."""

import torch
from torch import nn

from detcore_torch import DataLoader, LRScheduler, PyTorchTrial

EPOCHS = 4
g = torch.Generator().manual_seed(13)
tokens = torch.randint(0, 20, (90, 7), generator=g)
classes = tokens.sum(1) % 4


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, ids):
        return self.head(self.encoder(self.embedding(ids)).mean(1))


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(Encoder())
        blocks = [self.model.embedding, *self.model.encoder.layers, self.model.head]
        groups = [
            {"params": list(block.parameters()), "lr": 1e-2 * 0.7 ** (len(blocks) - 1 - depth)}
            for depth, block in enumerate(blocks)
        ]
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(groups, weight_decay=0.05))
        rates = [group["lr"] for group in groups]
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=rates, total_steps=40),
            LRScheduler.StepMode.STEP_EVERY_BATCH,
        )

    def build_training_data_loader(self):
        return DataLoader(list(zip(tokens, classes)), batch_size=15, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(list(zip(tokens, classes)), batch_size=30)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"val_loss": nn.functional.cross_entropy(self.model(batch[0]), batch[1])}
