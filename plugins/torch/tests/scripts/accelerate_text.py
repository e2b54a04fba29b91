"""Train a small language model of characters, as the examples of Accelerate do."""

import torch
from _shared import CHARACTERS, UsedRecords, options, train_with_accelerate_alone, windows
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn import functional
from torch.utils.data import DataLoader

from detcore_torch.for_accelerate import training


class LanguageModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.characters = torch.nn.Embedding(len(CHARACTERS), 16)
        self.layers = torch.nn.GRU(16, 16, batch_first=True)
        self.dropout = torch.nn.Dropout(0.1)
        self.scores = torch.nn.Linear(16, len(CHARACTERS))

    def forward(self, numbers):
        hidden, _ = self.layers(self.characters(numbers[:, :-1]))
        scores = self.scores(self.dropout(hidden))
        losses = functional.cross_entropy(scores.mT, numbers[:, 1:], reduction="none")
        return losses.mean(1)  # of each record


args = options()
set_seed(3)
accelerator = Accelerator(cpu=True)
model = LanguageModel()
train_loader = DataLoader(windows(0, 80), 8, shuffle=True, num_workers=args.workers)
val_loader = DataLoader(windows(80, 97), 8)
optimizer = torch.optim.AdamW(model.parameters(), args.rate)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
model, optimizer, train_loader, val_loader, scheduler = accelerator.prepare(
    model, optimizer, train_loader, val_loader, scheduler
)
used = UsedRecords(80)


def train(step, epoch, batch):
    ids, numbers = batch
    used.log(step + 1, epoch, ids)
    with accelerator.accumulate(model):
        loss = model(numbers).mean()
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return loss


def evaluate():
    model.eval()
    losses = []
    for _, numbers in val_loader:
        with torch.no_grad():
            losses.append(accelerator.gather_for_metrics(model(numbers)))
    return {"val_loss": torch.cat(losses).mean()}


if args.alone:
    train_with_accelerate_alone(accelerator, train_loader, args.epochs, train)
else:
    with training(
        accelerator,
        train_loader,
        validate=evaluate,
        epochs=args.epochs,
        report_every=5,
        validate_every=10,
        save_every=3,
    ) as run:
        for batch in run:
            run.report(train_loss=train(run.step, run.epoch, batch))

trained = {"model": model, "optimizer": optimizer, "lr_scheduler": scheduler}
