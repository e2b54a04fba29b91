"""Train a small network, as the examples of Accelerate do."""

import argparse
from pathlib import Path

import torch
from _used_records import UsedRecords
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset

from detcore_torch.for_accelerate import hyperparameters, training

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--alone", action="store_true", help="train and resume without detcore")
args = parser.parse_args()

hparams = hyperparameters(width=8, learning_rate=0.01)
set_seed(1)
accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
model = torch.nn.Sequential(
    torch.nn.Linear(4, hparams["width"]),
    torch.nn.ReLU(),
    torch.nn.Dropout(0.2),
    torch.nn.Linear(hparams["width"], 1),
)
x = torch.randn(86, 4)
data = TensorDataset(torch.arange(86), x, x.sum(1, keepdim=True))
train_loader = DataLoader(Subset(data, range(70)), 4, shuffle=True, num_workers=args.workers)
val_loader = DataLoader(Subset(data, range(70, 86)), 8)
optimizer = torch.optim.AdamW(model.parameters(), hparams["learning_rate"])
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9 * args.epochs)
model, optimizer, train_loader, val_loader, scheduler = accelerator.prepare(
    model, optimizer, train_loader, val_loader, scheduler
)
used = UsedRecords(70)


def train(step, epoch, batch):
    ids, x, y = batch
    if accelerator.num_processes == 1:
        used.log(step + 1, epoch, ids)
    with accelerator.accumulate(model):
        loss = functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return loss


def evaluate():
    model.eval()
    losses = []
    for _, x, y in val_loader:
        with torch.no_grad():
            loss = functional.mse_loss(model(x), y)
        losses.append(accelerator.gather_for_metrics(loss.repeat(len(x))))
    return {"val_loss": torch.cat(losses).mean()}


def train_alone():
    """Train, save and resume as the documentation of Accelerate describes."""
    done = max((int(path.name) for path in Path("accelerate").glob("[0-9]*")), default=0)
    if done:
        accelerator.load_state(f"accelerate/{done}")
    step, (start, skipped) = done, divmod(done, 9)
    for epoch in range(start, args.epochs):
        train_loader.set_epoch(epoch)
        loader = train_loader
        if epoch == start:
            loader = accelerator.skip_first_batches(train_loader, 2 * skipped)
        for batch in loader:
            train(step, epoch, batch)
            if accelerator.sync_gradients:
                step += 1
                if step % 2 == 0:
                    accelerator.save_state(f"accelerate/{step}")


if args.alone:
    train_alone()
else:
    with training(
        accelerator,
        train_loader,
        validate=evaluate,
        epochs=args.epochs,
        report_every=5,
        validate_every=6,
        save_every=2,
        hparams=hparams,
    ) as run:
        for batch in run:
            loss = train(run.step, run.epoch, batch)
            run.report(train_loss=loss)

trained = {"model": model, "optimizer": optimizer, "lr_scheduler": scheduler}
