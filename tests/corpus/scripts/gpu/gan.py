"""A GAN whose noise comes from a generator on the device."""

import torch
from torch import nn

from detcore_torch import DataLoader, PyTorchTrial

EPOCHS = 3
points = torch.randn(96, 2, generator=torch.Generator().manual_seed(3)) + 2


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.generator = context.wrap_model(
            nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        )
        self.critic = context.wrap_model(
            nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(32, 1))
        )
        self.g_opt = context.wrap_optimizer(torch.optim.Adam(self.generator.parameters(), 5e-3))
        self.c_opt = context.wrap_optimizer(torch.optim.Adam(self.critic.parameters(), 5e-3))
        self.noise = torch.Generator(context.device).manual_seed(4)
        self.fixed = torch.randn(32, 4, device=context.device)
        self.criterion = nn.BCEWithLogitsLoss()

    def build_training_data_loader(self):
        return DataLoader(points, batch_size=16, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(points, batch_size=48)

    def draw_noise(self, count):
        return torch.randn(count, 4, generator=self.noise, device=self.context.device)

    def train_batch(self, real, epoch_idx, batch_idx):
        ones, zeros = torch.ones_like(real[:, :1]), torch.zeros_like(real[:, :1])
        fake = self.generator(self.draw_noise(len(real)))
        c_loss = self.criterion(self.critic(real), ones)
        c_loss = c_loss + self.criterion(self.critic(fake.detach()), zeros)
        self.context.backward(c_loss)
        self.context.step_optimizer(self.c_opt)
        g_loss = self.criterion(self.critic(fake), ones)
        self.context.backward(g_loss)
        self.context.step_optimizer(self.g_opt)
        self.c_opt.zero_grad()
        return {"c_loss": c_loss, "g_loss": g_loss}

    def evaluate_batch(self, real):
        return {"val_loss": (self.generator(self.fixed).mean(0) - real.mean(0)).norm()}
