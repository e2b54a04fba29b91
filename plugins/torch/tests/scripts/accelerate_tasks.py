"""Train like Accelerate's examples: points with summed gradients, digits with a scaler."""

from pathlib import Path

import torch
from _shared import TASKS, UsedRecords, make_optimizer, options
from accelerate import Accelerator
from accelerate.utils import set_seed

from detcore_torch.for_accelerate import hyperparameters, training

args = options()
task = TASKS[args.task]
hparams = hyperparameters(rate=args.rate)
set_seed(1)
accelerator = Accelerator(
    gradient_accumulation_steps=2 if args.task == "points" else 1,
    mixed_precision="bf16" if args.bf16 else "no",
    cpu=True,
)
# The accelerator creates a scaler only on a GPU.
scaler = torch.amp.GradScaler(
    "cpu", init_scale=8.0, growth_interval=5, enabled=args.task == "digits"
)
accelerator.register_for_checkpointing(scaler)
model = task.make_network()
model, *others = accelerator.prepare(
    model, *make_optimizer(args, model), *task.make_loaders(args.workers)
)
optimizer, scheduler, train_loader, val_loader = others
used = UsedRecords(task.num_training)


def train(step, epoch, batch):
    used.log(step + 1, epoch, batch.pop("ids"))
    with accelerator.accumulate(model):
        loss = model(**batch)["loss"]
        accelerator.backward(scaler.scale(loss))
        if accelerator.sync_gradients:
            scaler.unscale_(optimizer.optimizer)
            if args.task != "points":
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer.optimizer if args.task == "digits" else optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
    return loss


def evaluate():
    model.eval()
    losses = []
    for batch in val_loader:
        with torch.no_grad():
            logits = model(batch["x"], batch["labels"])["logits"]
        loss = accelerator.unwrap_model(model).loss(logits, batch["labels"], reduction="none")
        losses.append(accelerator.gather_for_metrics(loss))
    return {"val_loss": torch.cat(losses).mean()}


def train_alone():
    """Train, save every second step and resume as in Accelerate's documentation."""
    accumulated = accelerator.gradient_accumulation_steps
    latest_step = max((int(path.name) for path in Path("accelerate").glob("[0-9]*")), default=0)
    if latest_step:
        accelerator.load_state(f"accelerate/{latest_step}")
    start, skipped = divmod(latest_step, -(-len(train_loader) // accumulated))
    for epoch in range(start, args.epochs):
        train_loader.set_epoch(epoch)
        batches = train_loader
        if epoch == start:
            batches = accelerator.skip_first_batches(train_loader, accumulated * skipped)
        for batch in batches:
            train(latest_step, epoch, batch)
            if accelerator.sync_gradients:
                latest_step += 1
                if latest_step % 2 == 0:
                    accelerator.save_state(f"accelerate/{latest_step}")


if args.alone:
    train_alone()
else:
    with training(
        accelerator,
        train_loader,
        validate=evaluate,
        epochs=args.epochs,
        report_every=5,
        validate_every=10 if args.task == "text" else 6,
        save_every=2,
        hparams=hparams,
    ) as run:
        for batch in run:
            run.report(train_loss=train(run.step, run.epoch, batch))

trained = {"model": model, "optimizer": optimizer, "lr_scheduler": scheduler, "scaler": scaler}
