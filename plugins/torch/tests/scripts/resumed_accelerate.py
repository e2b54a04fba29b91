"""Train with Accelerate; see `resumed_task`."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from resumed_task import (
    Network,
    Progress,
    args,
    change_weights,
    make_optimizer,
    make_scaler,
    make_scheduler,
    noise,
    plant_faults,
    records,
)
from torch.utils.data import DataLoader

from detcore_torch.for_accelerate import training


class Registered(Progress):
    def state_dict(self):
        return {**vars(self), "generator": self.generator.bit_generator.state}

    def load_state_dict(self, state):
        self.count, self.average = state["count"], state["average"]
        self.generator.bit_generator.state = state["generator"]


Registered.__name__ = "Progress"  # as in the other scripts
set_seed(1)
accelerator = Accelerator(cpu=True)
accelerator.scaler = make_scaler()
model, progress = Network(), Registered()
accelerator.register_for_checkpointing(progress)
optimizer = make_optimizer(model)
model, optimizer, scheduler, loader = accelerator.prepare(
    model, optimizer, make_scheduler(optimizer), DataLoader(records, 4, shuffle=True)
)


def evaluate():
    model.eval()
    with torch.no_grad():
        losses = [model(**record)["loss"] for record in records[:8]]
    return {"val_loss": torch.stack(losses).mean()}


plant_faults(
    model,
    progress,
    lambda: {
        "data position": lambda: run._data.position.update(batch=1),
        "variable of the loop": lambda: globals().update(count=count + 1),
        "generator of the loop": lambda: torch.rand(1, generator=noise),
    },
)
count = 0
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
        count += 1
        batch["x"] += 0.1 * torch.randn(batch["x"].shape, generator=noise)
        loss = model(**batch)["loss"] * (1 + count / 100)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        progress.update(model)
        run.report(train_loss=loss)

trained = {"model": model, "optimizer": optimizer}
