"""A small language model with tied weights, scheduled dropout and global counters."""

import random

import numpy as np
import torch
from torch import nn

from detcore_torch import DataLoader, PyTorchTrial

EPOCHS = 4
WORDS = np.random.default_rng(15).integers(0, 24, size=961)
windows = torch.tensor(WORDS[:960].reshape(96, 10))
num_batches = 0


def make_dropout_schedule(start, end, steps):
    step = 0

    def advance():
        nonlocal step
        step += 1
        return start + (end - start) * min(1.0, step / steps)

    return advance


def mask_words(rows):
    """Replace some words, as augmentation."""
    rows = torch.stack(rows)
    for row in rows:
        if random.random() < 0.5:
            row[np.random.randint(10)] = 0
    return rows


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(24, 16)
        self.rnn = nn.LSTM(16, 16, batch_first=True)
        self.dropout = nn.Dropout(0.5)
        self.decoder = nn.Linear(16, 24)
        self.decoder.weight = self.embedding.weight

    def forward(self, ids):
        hidden, _ = self.rnn(self.dropout(self.embedding(ids)))
        return self.decoder(self.dropout(hidden))


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(LanguageModel())
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), 0.01))
        self.next_dropout = make_dropout_schedule(0.5, 0.1, 20)

    def build_training_data_loader(self):
        return DataLoader(
            list(windows), batch_size=16, shuffle=True, collate_fn=mask_words, num_workers=2
        )

    def build_validation_data_loader(self):
        return DataLoader(list(windows), batch_size=32)

    def loss(self, ids):
        logits = self.model(ids[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def train_batch(self, batch, epoch_idx, batch_idx):
        global num_batches
        num_batches += 1
        self.model.dropout.p = self.next_dropout()
        loss = self.loss(batch)
        self.context.backward(loss / (1 + num_batches / 100))
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss, "dropout": self.model.dropout.p}

    def evaluate_batch(self, batch):
        return {"val_loss": self.loss(batch)}
