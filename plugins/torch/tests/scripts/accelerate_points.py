"""Train a small network on points with summed gradients, as the examples of Accelerate do."""

import torch
from _shared import UsedRecords, options, train_with_accelerate_alone
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset

from detcore_torch.for_accelerate import hyperparameters, training

args = options()

hparams = hyperparameters(width=8, learning_rate=0.01)
set_seed(1)
precision = "bf16" if args.bf16 else "no"
accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision=precision, cpu=True)
model = torch.nn.Sequential(
    torch.nn.Linear(4, hparams["width"]),
    torch.nn.ReLU(),
    torch.nn.Dropout(0.2),
    torch.nn.Linear(hparams["width"], 1),
)
x = torch.randn(88, 4)
data = TensorDataset(torch.arange(88), x, x.sum(1, keepdim=True))
train_loader = DataLoader(Subset(data, range(72)), 4, shuffle=True, num_workers=args.workers)
val_loader = DataLoader(Subset(data, range(72, 88)), 8)
optimizer = torch.optim.AdamW(model.parameters(), hparams["learning_rate"])
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
    optimizer, -(-len(train_loader) // 2) * args.epochs
)
model, optimizer, train_loader, val_loader, scheduler = accelerator.prepare(
    model, optimizer, train_loader, val_loader, scheduler
)
used = UsedRecords(72)


def train(step, epoch, batch):
    ids, x, y = batch
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


if args.alone:
    train_with_accelerate_alone(accelerator, train_loader, args.epochs, train)
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
