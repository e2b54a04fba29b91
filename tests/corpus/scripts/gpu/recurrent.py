"""A two-layer LSTM with dropout, sums of two batches and tied weights."""

# config: optimizations.aggregation_frequency=2

import torch
from torch import nn

from detcore_torch import DataLoader, PyTorchTrial

EPOCHS = 3
g = torch.Generator().manual_seed(2)
windows = torch.randint(0, 24, (96, 10), generator=g)


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(24, 16)
        self.rnn = nn.LSTM(16, 16, num_layers=2, dropout=0.2, batch_first=True)
        self.decoder = nn.Linear(16, 24)
        self.decoder.weight = self.embedding.weight

    def forward(self, ids):
        return self.decoder(self.rnn(self.embedding(ids))[0])


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(LanguageModel())
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), 0.01))

    def build_training_data_loader(self):
        return DataLoader(list(windows), batch_size=16, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(list(windows), batch_size=48)

    def loss(self, ids):
        logits = self.model(ids[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def train_batch(self, ids, epoch_idx, batch_idx):
        loss = self.loss(ids)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, ids):
        return {"val_loss": self.loss(ids)}
