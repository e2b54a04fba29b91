"""Train as PyTorch's tutorial on checkpoints does: the control of `PyTorchTrial`."""

from pathlib import Path

import torch
from _shared import Digits, UsedRecords, options
from torch.nn import functional
from torch.utils.data import DataLoader

args = options()
torch.manual_seed(2)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 10))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.95)
loader = DataLoader(Digits(0, 96), 8, shuffle=True, num_workers=args.workers)
used, saved = UsedRecords(96), Path("checkpoint.pt")
step = start = 0
if saved.exists():
    checkpoint = torch.load(saved)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    step, start = checkpoint["step"], checkpoint["epoch"]
for epoch in range(start, args.epochs):
    for ids, images, labels in loader:
        step += 1
        used.log(step, epoch, ids)
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 2 == 0:
            state = {"step": step, "epoch": epoch}
            for name, each in (
                ("model", model),
                ("optimizer", optimizer),
                ("scheduler", scheduler),
            ):
                state[name] = each.state_dict()
            torch.save(state, "checkpoint.tmp")
            Path("checkpoint.tmp").replace(saved)
trained = {"model": model, "optimizer": optimizer, "lr_scheduler": scheduler}
