"""A GAN with manual optimization, two optimizers and a schedule per epoch."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_lightning import fit

EPOCHS = 4


class GAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 12), nn.LeakyReLU(), nn.Linear(12, 1))
        self.register_buffer("validation_z", torch.randn(16, 3))

    def training_step(self, batch, batch_idx):
        (real,) = batch
        g_opt, d_opt = self.optimizers()
        loss = nn.functional.binary_cross_entropy_with_logits
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)

        self.toggle_optimizer(g_opt)
        g_loss = loss(self.discriminator(self.generator(torch.randn(len(real), 3))), ones)
        g_opt.zero_grad()
        self.manual_backward(g_loss)
        g_opt.step()
        self.untoggle_optimizer(g_opt)

        self.toggle_optimizer(d_opt)
        fake = self.generator(torch.randn(len(real), 3)).detach()
        d_loss = (loss(self.discriminator(real), ones) + loss(self.discriminator(fake), zeros)) / 2
        d_opt.zero_grad()
        self.manual_backward(d_loss)
        d_opt.step()
        self.untoggle_optimizer(d_opt)
        self.log_dict({"g_loss": g_loss, "d_loss": d_loss})

    def on_train_epoch_end(self):
        for schedule in self.lr_schedulers():
            schedule.step()

    def validation_step(self, batch, batch_idx):
        samples = self.generator(self.validation_z)
        self.log("val_loss", (samples.mean(0) - batch[0].mean(0)).norm())

    def configure_optimizers(self):
        g_opt = torch.optim.Adam(self.generator.parameters(), lr=1e-2, betas=(0.5, 0.9))
        d_opt = torch.optim.Adam(self.discriminator.parameters(), lr=1e-2, betas=(0.5, 0.9))
        schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in (g_opt, d_opt)]
        return [g_opt, d_opt], schedules


L.seed_everything(2)
points = TensorDataset(torch.randn(80, 2) * 0.3 + 1)
model = GAN()
trainer = L.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=2,
)
loader = DataLoader(points, batch_size=16, shuffle=True, drop_last=True)
fit(trainer, model, loader, DataLoader(points, batch_size=40), save_every=3)
print("final", float(trainer.callback_metrics["val_loss"]))
