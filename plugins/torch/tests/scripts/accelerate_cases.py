"""Train a small network with features as in the documentation of PyTorch and Accelerate."""

import torch
from _shared import options
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_accelerate import training

args = options()
set_seed(1)
accelerator = Accelerator(cpu=True)
backbone = torch.nn.Sequential(torch.nn.Linear(4, 37), torch.nn.BatchNorm1d(37), torch.nn.Tanh())
head = torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(37, 1))
model = torch.nn.Sequential(backbone, head)
x = torch.randn(40, 4)
train_loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
if args.case == "lbfgs":
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=4, history_size=5)
else:
    optimizer = torch.optim.AdamW(head.parameters(), 0.01)
model, optimizer, train_loader = accelerator.prepare(model, optimizer, train_loader)


def freeze(is_frozen):
    for parameter in backbone.parameters():
        parameter.requires_grad = not is_frozen


def evaluate():
    model.eval()
    with torch.no_grad():
        return {"val_loss": functional.mse_loss(model(x), x.sum(1, keepdim=True))}


def train(x, y):
    if args.case == "summed":
        return sum_gradients(x, y)

    def compute_loss():
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        return loss

    optimizer.step(compute_loss)
    return functional.mse_loss(model(x), y)


def sum_gradients(x, y):
    """Update the head after every third batch, without resetting the gradients of the backbone."""
    loss = functional.mse_loss(model(x), y)
    accelerator.backward(loss)
    if run.step % 3 == 2:
        accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return loss


with training(
    accelerator, train_loader, validate=evaluate, epochs=args.epochs, save_every=2
) as run:
    model.train()
    freeze(args.case == "finetune")
    for x_batch, y_batch in run:
        if args.case == "finetune" and run.step == 7:
            freeze(False)
            optimizer.add_param_group({"params": backbone.parameters(), "lr": 0.001})
            backbone[1].eval()  # its statistics do not change
            head[0].p = 0.3
        if args.case == "new-optimizer" and run.step == 7:
            accelerator.prepare(torch.optim.SGD(head.parameters(), 0.01))
        run.report(train_loss=train(x_batch, y_batch))

trained = {"model": model, "optimizer": optimizer}
