"""Train with Accelerate; see `resumed_task`."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from resumed_task import Network, args, change_weights, fault, make_optimizer, noise, records
from torch.utils.data import DataLoader

from detcore_torch.for_accelerate import training

set_seed(1)
accelerator = Accelerator(cpu=True)
model = Network()
model, optimizer, loader = accelerator.prepare(
    model, make_optimizer(model), DataLoader(records, 4, shuffle=True)
)


def evaluate():
    model.eval()
    with torch.no_grad():
        losses = [model(**record)["loss"] for record in records[:8]]
    return {"val_loss": torch.stack(losses).mean()}


with training(
    accelerator,
    loader,
    validate=evaluate,
    max_steps=60,
    report_every=5,
    validate_every=30,
    inexact_resume=args.inexact_resume,
) as run:
    for number, batch in enumerate(run):
        if number == 0:
            change_weights(model)
        if fault == "generator":
            batch["x"] += 0.1 * torch.randn(batch["x"].shape, generator=noise)
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        run.report(train_loss=loss)

trained = {"model": model, "optimizer": optimizer}
