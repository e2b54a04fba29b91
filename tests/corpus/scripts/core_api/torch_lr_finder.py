"""A learning rate range test, then training with an average of the last weights."""

import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from detcore import core
from detcore.data import IndexSampler

EPOCHS = 4
torch.manual_seed(10)
x = torch.randn(96, 4)
y = x.pow(2).sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
sampler = IndexSampler(96, 16, shuffle=True, seed=10)


def find_rate():
    trial = copy.deepcopy(model)
    best, chosen = float("inf"), 1e-4
    for number in range(12):
        rate = 1e-4 * 2**number
        loss = nn.functional.mse_loss(trial(x[:32]), y[:32])
        gradients = torch.autograd.grad(loss, list(trial.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(trial.parameters(), gradients):
                parameter.sub_(rate * gradient)
        if loss.item() < best:
            best, chosen = loss.item(), rate / 4
    return chosen


rate = find_rate()
optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=24)
average = AveragedModel(model)
parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "average": average}
script = core.ScriptExperiment(hparams={"rate": rate})
with core.init(script=script, max_length={"epochs": 4}, resume=True) as context:
    step = context.info.steps_completed
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            for name, part in parts.items():
                part.load_state_dict(torch.load(path / f"{name}.pt"))
    for operation in context.searcher.operations():
        while step < operation.length * 6:
            batch = sampler.batch(step)
            loss = nn.functional.mse_loss(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if step > 12:
                average.update_parameters(model)
            if context.preempt.should_preempt() or step % 5 == 0 or step % 6 == 0:
                with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    for name, part in parts.items():
                        torch.save(part.state_dict(), path / f"{name}.pt")
            if step % 6 == 0:
                error = nn.functional.mse_loss(average(x), y).item()
                context.train.report_validation_metrics(step, {"val_loss": error})
        error = nn.functional.mse_loss(average(x), y).item()
        operation.report_completed(error)
print("final", error, rate)
