"""Sequences of similar length share a batch: a batch sampler with its own generator."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

from detcore_torch import PyTorchTrial

EPOCHS = 4
g = torch.Generator().manual_seed(7)
lengths = torch.randint(2, 9, (72,), generator=g).tolist()
sequences = [torch.randn(n, 3, generator=g) for n in lengths]


class BucketSampler:
    """Sorts by length, cuts into batches and shuffles the batches."""

    def __init__(self, batch_size):
        self.batch_size = batch_size

    def __iter__(self):
        order = sorted(range(len(lengths)), key=lambda i: (lengths[i], random.random()))
        batches = [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        random.shuffle(batches)
        return iter(batches)

    def __len__(self):
        return -(-len(lengths) // self.batch_size)


def collate(items):
    items = sorted(items, key=len, reverse=True)
    sizes = torch.tensor([len(item) for item in items])
    return pad_sequence(items, batch_first=True), sizes, torch.stack([i.sum() for i in items])


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.rnn = context.wrap_model(nn.GRU(3, 8, batch_first=True))
        self.head = context.wrap_model(nn.Linear(8, 1))
        parameters = [*self.rnn.parameters(), *self.head.parameters()]
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(parameters, 0.01))

    def build_training_data_loader(self):
        return DataLoader(sequences, batch_sampler=BucketSampler(12), collate_fn=collate)

    def build_validation_data_loader(self):
        return DataLoader(sequences[:24], batch_size=12, collate_fn=collate)

    def predict(self, padded, sizes):
        _, hidden = self.rnn(pack_padded_sequence(padded, sizes.cpu(), batch_first=True))
        return self.head(hidden[-1]).squeeze(1)

    def train_batch(self, batch, epoch_idx, batch_idx):
        padded, sizes, sums = batch
        loss = nn.functional.mse_loss(self.predict(padded, sizes), sums)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        padded, sizes, sums = batch
        return {"val_loss": nn.functional.mse_loss(self.predict(padded, sizes), sums)}
