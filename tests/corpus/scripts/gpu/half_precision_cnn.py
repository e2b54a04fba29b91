"""Half precision with a scaler, batch norm, channels-last tensors and augmentation."""

import torch
from torch import nn
from torch.nn import functional as F

from detcore_torch import DataLoader, LRScheduler, PyTorchTrial

EPOCHS = 3
g = torch.Generator().manual_seed(0)
images = torch.rand(112, 3, 8, 8, generator=g)
labels = (images.mean((1, 2, 3)) > 0.5).long()


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.device_type = context.device.type
        self.dtype = torch.float16 if self.device_type == "cuda" else torch.bfloat16
        network = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(32, 2),
        )
        self.model = context.wrap_model(network.to(memory_format=torch.channels_last))
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        )
        self.scaler = context.wrap_scaler(
            torch.amp.GradScaler(self.device_type, init_scale=64.0, growth_interval=4)
        )
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.7),
            LRScheduler.StepMode.STEP_EVERY_EPOCH,
        )

    def build_training_data_loader(self):
        data = torch.utils.data.TensorDataset(images[:96], labels[:96])
        return DataLoader(data, batch_size=16, shuffle=True, num_workers=2)

    def build_validation_data_loader(self):
        return DataLoader(torch.utils.data.TensorDataset(images[96:], labels[96:]), batch_size=16)

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        x = x + 0.05 * torch.randn_like(x)
        if torch.rand((), device=x.device) < 0.5:
            x = x.flip(-1)
        with torch.autocast(self.device_type, dtype=self.dtype):
            loss = F.cross_entropy(self.model(x), y)
        self.context.backward(self.scaler.scale(loss))
        clip = lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        self.context.step_optimizer(self.optimizer, clip_grads=clip, scaler=self.scaler)
        self.scaler.update()
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"val_loss": F.cross_entropy(self.model(batch[0]), batch[1])}
