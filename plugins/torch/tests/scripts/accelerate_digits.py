"""Classify noisy scans of digits with a gradient scaler, as the examples of Accelerate do."""

import torch
from _shared import Digits, UsedRecords, options, train_with_accelerate_alone
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn import functional
from torch.utils.data import DataLoader

from detcore_torch.for_accelerate import training

args = options()
set_seed(2)
accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
)
train_loader = DataLoader(Digits(0, 96), 8, shuffle=True, num_workers=args.workers)
val_loader = DataLoader(Digits(96, 128, noise=0), 16)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.95)
# The accelerator makes a scaler itself on a GPU only.
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)
accelerator.register_for_checkpointing(scaler)
model, optimizer, train_loader, val_loader, scheduler = accelerator.prepare(
    model, optimizer, train_loader, val_loader, scheduler
)
used = UsedRecords(96)


def train(step, epoch, batch):
    ids, images, labels = batch
    used.log(step + 1, epoch, ids)
    loss = functional.cross_entropy(model(images), labels)
    accelerator.backward(scaler.scale(loss))
    scaler.unscale_(optimizer.optimizer)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer.optimizer)
    scaler.update()
    scheduler.step()
    optimizer.zero_grad()
    return loss


def evaluate():
    model.eval()
    losses = []
    for _, images, labels in val_loader:
        with torch.no_grad():
            loss = functional.cross_entropy(model(images), labels)
        losses.append(accelerator.gather_for_metrics(loss.repeat(len(images))))
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
        validate_every=7,
        save_every=2,
    ) as run:
        for batch in run:
            run.report(train_loss=train(run.step, run.epoch, batch))

trained = {"model": model, "optimizer": optimizer, "lr_scheduler": scheduler, "scaler": scaler}
