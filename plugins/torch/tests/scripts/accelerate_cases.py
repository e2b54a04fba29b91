"""Train a small network as the documentation of PyTorch and Accelerate shows a feature."""

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
model = torch.nn.Sequential(torch.nn.Linear(4, 37), torch.nn.Tanh(), torch.nn.Linear(37, 1))
x = torch.randn(40, 4)
train_loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
if args.case == "lbfgs":
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=4, history_size=5)
model, optimizer, train_loader = accelerator.prepare(model, optimizer, train_loader)


def evaluate():
    with torch.no_grad():
        return {"val_loss": functional.mse_loss(model(x), x.sum(1, keepdim=True))}


with training(
    accelerator, train_loader, validate=evaluate, epochs=args.epochs, save_every=2
) as run:
    for x_batch, y_batch in run:

        def compute_loss():
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x_batch), y_batch)
            accelerator.backward(loss)
            return loss

        optimizer.step(compute_loss)
        run.report(train_loss=functional.mse_loss(model(x_batch), y_batch))

trained = {"model": model, "optimizer": optimizer}
