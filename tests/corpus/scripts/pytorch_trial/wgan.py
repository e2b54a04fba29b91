"""A Wasserstein GAN: the critic trains each batch, the generator every third."""

import torch
from torch import nn

from detcore_torch import DataLoader, PyTorchTrial

EPOCHS = 4
real_points = torch.randn(96, 2, generator=torch.Generator().manual_seed(1)) * 0.5 + 2.0


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.generator = context.wrap_model(
            nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
        )
        self.critic = context.wrap_model(
            nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        )
        self.g_opt = context.wrap_optimizer(torch.optim.RMSprop(self.generator.parameters(), 5e-3))
        self.c_opt = context.wrap_optimizer(torch.optim.RMSprop(self.critic.parameters(), 5e-3))
        self.fixed_noise = torch.randn(8, 4)
        self.critic_updates = 0
        self.last_g_loss = 0.0

    def build_training_data_loader(self):
        return DataLoader(real_points, batch_size=16, shuffle=True, drop_last=True)

    def build_validation_data_loader(self):
        return DataLoader(real_points[:16], batch_size=16)

    def train_batch(self, real, epoch_idx, batch_idx):
        fake = self.generator(torch.randn(len(real), 4)).detach()
        c_loss = self.critic(fake).mean() - self.critic(real).mean()
        self.context.backward(c_loss)
        self.context.step_optimizer(self.c_opt)
        with torch.no_grad():
            for parameter in self.critic.parameters():
                parameter.clamp_(-0.1, 0.1)
        self.critic_updates += 1
        if self.critic_updates % 3 == 0:
            g_loss = -self.critic(self.generator(torch.randn(len(real), 4))).mean()
            self.context.backward(g_loss)
            self.context.step_optimizer(self.g_opt)
            self.c_opt.zero_grad()
            self.last_g_loss = g_loss.item()
        return {"c_loss": c_loss, "g_loss": self.last_g_loss}

    def evaluate_batch(self, real):
        samples = self.generator(self.fixed_noise)
        return {"val_loss": (samples.mean(0) - real.mean(0)).norm()}
