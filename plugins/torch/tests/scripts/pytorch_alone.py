"""Train like PyTorch's tutorial on checkpoints, as the control of `PyTorchTrial`."""

from pathlib import Path

import torch
from _shared import TASKS, UsedRecords, make_optimizer, options

args = options()
task = TASKS[args.task]
torch.manual_seed(2)
model = task.make_network()
optimizer, scheduler = make_optimizer(args, model)
trained = {"model": model, "optimizer": optimizer, "lr_scheduler": scheduler}
loader, _ = task.make_loaders(args.workers)
used, path = UsedRecords(task.num_training), Path("checkpoint.pt")
step = start = 0
if path.exists():
    checkpoint = torch.load(path)
    for name, instance in trained.items():
        instance.load_state_dict(checkpoint[name])
    step, start = checkpoint["step"], checkpoint["epoch"]
for epoch in range(start, args.epochs):
    for batch in loader:
        step += 1
        used.log(step, epoch, batch.pop("ids"))
        loss = model(**batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 2 == 0:
            state = {name: instance.state_dict() for name, instance in trained.items()}
            torch.save({"step": step, "epoch": epoch, **state}, "checkpoint.tmp")
            Path("checkpoint.tmp").replace(path)
