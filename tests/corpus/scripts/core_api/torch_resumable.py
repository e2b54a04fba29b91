"""Plain PyTorch with a resumable loader, dropout and a schedule per epoch."""

import json

import numpy as np
import torch
from torch import nn

from detcore import core
from detcore_torch import resumable

EPOCHS = 4
torch.manual_seed(7)
x = torch.randn(96, 5)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())


def add_noise(rows):
    features = torch.stack([row[0] for row in rows])
    noise = np.random.normal(0, 0.1, features.shape)
    return features + torch.tensor(noise, dtype=torch.float32), torch.stack([r[1] for r in rows])


loader = resumable(
    torch.utils.data.DataLoader(data, 16, shuffle=True, collate_fn=add_noise, num_workers=1), seed=7
)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)


def save(context, steps):
    with context.checkpoint.store_path({"steps_completed": steps}) as (path, _):
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "rng": torch.get_rng_state(),
            },
            path / "training.pt",
        )
        (path / "position.json").write_text(json.dumps(loader.position()))


with core.init(max_length={"batches": 24}, resume=True) as context:
    steps = context.info.steps_completed
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            state = torch.load(path / "training.pt")
            loader.seek(json.loads((path / "position.json").read_text()))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["rng"])
    for operation in context.searcher.operations():
        while steps < operation.length:
            for features, labels in loader:
                loss = nn.functional.cross_entropy(model(features), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps += 1
                if steps % 6 == 0:
                    schedule.step()
                if steps % 4 == 0:
                    context.train.report_training_metrics(steps, {"loss": loss.item()})
                if context.preempt.should_preempt() or steps % 5 == 0 or steps == operation.length:
                    save(context, steps)
        model.eval()
        error = nn.functional.cross_entropy(model(x), data.tensors[1]).item()
        context.train.report_validation_metrics(steps, {"val_loss": error})
        operation.report_completed(error)
print("final", error)
