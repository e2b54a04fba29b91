"""Three folds in one script; each has its own sampler."""

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from detcore_torch.for_lightning import fit

EPOCHS = 3


class Net(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.net = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


x = torch.randn(72, 4, generator=torch.Generator().manual_seed(12))
data = TensorDataset(x, x.sum(1, keepdim=True) + 1)
order = np.random.default_rng(12).permutation(72)
models, scores = [], []
for fold in range(3):
    L.seed_everything(fold)
    held_out = order[fold * 24 : (fold + 1) * 24]
    train = np.setdiff1d(order, held_out)
    model = Net(lr=0.01 * (fold + 1))
    trainer = L.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=2,
    )
    train_loader = DataLoader(Subset(data, train), batch_size=12, shuffle=True)
    val_loader = DataLoader(Subset(data, held_out), batch_size=24)
    fit(trainer, model, train_loader, val_loader, hparams={"fold": fold}, save_every=2)
    models.append(model)
    with torch.no_grad():
        scores.append(
            float(nn.functional.mse_loss(model.net(x[held_out]), data.tensors[1][held_out]))
        )
print("final", np.mean(scores), scores)
