"""A GAN with two models, two optimizers and label noise from NumPy."""

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader

from detcore_torch.for_accelerate import training

EPOCHS = 4
set_seed(3)
accelerator = Accelerator(cpu=True)
real_data = torch.randn(96, 2) + 2
generator = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(16, 1))
g_opt = torch.optim.Adam(generator.parameters(), 1e-2)
c_opt = torch.optim.Adam(critic.parameters(), 1e-2)
loader = DataLoader(real_data, batch_size=16, shuffle=True)
generator, critic, g_opt, c_opt, loader = accelerator.prepare(
    generator, critic, g_opt, c_opt, loader
)
fixed = torch.randn(32, 3)
loss_function = nn.BCEWithLogitsLoss()


def evaluate():
    generator.eval()
    with torch.no_grad():
        return {"val_loss": (generator(fixed).mean(0) - real_data.mean(0)).norm().item()}


with training(accelerator, loader, validate=evaluate, epochs=EPOCHS, save_every=3) as run:
    for real in run:
        noise = float(np.random.uniform(0.0, 0.1))
        fake = generator(torch.randn(len(real), 3))
        c_loss = loss_function(critic(real), torch.ones(len(real), 1) - noise)
        c_loss = c_loss + loss_function(critic(fake.detach()), torch.zeros(len(real), 1))
        accelerator.backward(c_loss)
        c_opt.step()
        c_opt.zero_grad()
        g_loss = loss_function(critic(fake), torch.ones(len(real), 1))
        accelerator.backward(g_loss)
        g_opt.step()
        g_opt.zero_grad()
        c_opt.zero_grad()
        run.report(c_loss=c_loss, g_loss=g_loss)
print("final", evaluate())
