"""A moving average of the weights in hooks of checkpoints, in the style of Determined 0.20."""

import copy
import pathlib

import torch
from determined.pytorch import DataLoader, PyTorchCallback, PyTorchTrial, PyTorchTrialContext
from toy_data import points


class Average(PyTorchCallback):
    def __init__(self, model):
        self.model = model
        self.average = copy.deepcopy(model).requires_grad_(False)
        self.uploaded = []

    def on_before_optimizer_step(self, parameters):
        for parameter in parameters:
            parameter.grad.clamp_(-0.1, 0.1)

    def update(self):
        for mean, parameter in zip(self.average.parameters(), self.model.parameters()):
            mean.lerp_(parameter.detach(), 0.1)

    def on_checkpoint_save_start(self, checkpoint):
        checkpoint["average"] = self.average.state_dict()

    def on_checkpoint_load_start(self, checkpoint):
        self.average.load_state_dict(checkpoint["average"])

    def on_checkpoint_end(self, checkpoint_dir):
        torch.save(self.average.state_dict(), pathlib.Path(checkpoint_dir) / "average.pt")

    def on_checkpoint_upload_end(self, uuid):
        print(f"checkpoint {uuid} exists")

    def on_validation_step_end(self, metrics):
        print(f"validated: {sorted(metrics)}")


class Trial(PyTorchTrial):
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(8, 3))
        self.optimizer = context.wrap_optimizer(
            torch.optim.Adam(self.model.parameters(), lr=context.get_hparam("learning_rate"))
        )
        self.ema = Average(self.model)

    def build_callbacks(self):
        return {"ema": self.ema}

    def build_training_data_loader(self):
        return DataLoader(points(), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(points(30), batch_size=self.context.get_per_slot_batch_size())

    def train_batch(self, batch, epoch_idx, batch_idx):
        features, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(features), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.ema.update()
        return loss

    def evaluate_batch(self, batch):
        features, labels = batch
        scores = self.ema.average(features)
        return {"validation_loss": torch.nn.functional.cross_entropy(scores, labels)}
