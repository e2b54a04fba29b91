"""A GAN with two optimizers and images in TensorBoard, in the style of Determined 0.15."""

import torch
from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext
from determined.tensorboard.metric_writers.pytorch import TorchWriter
from toy_data import points


class Trial(PyTorchTrial):
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.logger = TorchWriter()
        self.generator = context.wrap_model(
            torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))
        )
        self.discriminator = context.wrap_model(
            torch.nn.Sequential(
                torch.nn.Linear(8, 16), torch.nn.LeakyReLU(), torch.nn.Linear(16, 1)
            )
        )
        lr = context.get_hparam("learning_rate")
        self.opt_g = context.wrap_optimizer(torch.optim.Adam(self.generator.parameters(), lr=lr))
        self.opt_d = context.wrap_optimizer(
            torch.optim.Adam(self.discriminator.parameters(), lr=lr, betas=(0.5, 0.999))
        )

    def build_training_data_loader(self):
        return DataLoader(points(), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(points(30), batch_size=self.context.get_per_slot_batch_size())

    def judge(self, samples, real):
        scores = self.discriminator(samples)
        target = torch.full_like(scores, float(real))
        return torch.nn.functional.binary_cross_entropy_with_logits(scores, target)

    def train_batch(self, batch, epoch_idx, batch_idx):
        samples, _ = batch
        noise = self.context.to_device(torch.randn(samples.shape[0], 4))

        self.discriminator.requires_grad_(False)
        g_loss = self.judge(self.generator(noise), True)
        self.context.backward(g_loss)
        self.context.step_optimizer(self.opt_g)

        self.discriminator.requires_grad_(True)
        d_loss = (self.judge(samples, True) + self.judge(self.generator(noise).detach(), False)) / 2
        self.context.backward(d_loss)
        self.context.step_optimizer(self.opt_d)

        if self.context.is_epoch_start():
            image = self.generator(noise).detach().sigmoid()[None]
            self.logger.writer.add_image("generated", image, self.context.current_train_epoch())
        return {"loss": d_loss, "g_loss": g_loss, "d_loss": d_loss}

    def evaluate_batch(self, batch):
        samples, _ = batch
        noise = self.context.to_device(torch.zeros(samples.shape[0], 4))
        return {"validation_loss": self.judge(self.generator(noise), True)}
