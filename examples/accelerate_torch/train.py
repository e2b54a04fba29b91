"""Train a small network on scikit-learn's handwritten digits with Accelerate and a custom loop.

The detcore lines are the import, ``hyperparameters``, and ``with training(...)`` with its loop and
report.
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

from detcore_torch.for_accelerate import hyperparameters, training

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--num-workers", type=int, default=0)
args = parser.parse_args()
hparams = hyperparameters(width=16, dropout=0.3, learning_rate=5e-3, batch_size=32)
set_seed(1)
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
train, val_data = random_split(TensorDataset(images, torch.tensor(digits.target)), [0.8, 0.2])
train_loader = DataLoader(train, hparams["batch_size"], shuffle=True, num_workers=args.num_workers)
val_loader = DataLoader(val_data, 128)
width = hparams["width"]
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, width, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.Conv2d(width, width, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Dropout(hparams["dropout"]),
    torch.nn.Linear(16 * width, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), hparams["learning_rate"])
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.998)
accelerator = Accelerator(cpu=True)
model, optimizer, train_loader, val_loader, scheduler = accelerator.prepare(
    model, optimizer, train_loader, val_loader, scheduler
)


def evaluate():
    """Return the validation metrics of all processes."""
    model.eval()
    losses, hits = [], []
    for images, labels in val_loader:
        with torch.no_grad():
            logits = model(images)
        loss = functional.cross_entropy(logits, labels, reduction="none")
        hit = (logits.argmax(1) == labels).float()
        losses.append(accelerator.gather_for_metrics(loss))
        hits.append(accelerator.gather_for_metrics(hit))
    return {"val_loss": torch.cat(losses).mean(), "val_accuracy": torch.cat(hits).mean()}


with training(
    accelerator,
    train_loader,
    validate=evaluate,
    epochs=args.epochs,
    report_every=15,
    hparams=hparams,
) as run:
    for images, labels in run:
        with accelerator.accumulate(model):
            loss = functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        run.report(train_loss=loss)
