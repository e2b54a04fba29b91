"""Custom reducers, in the style of Determined 0.13 and of later releases."""

import torch
from determined.pytorch import DataLoader, MetricReducer, PyTorchTrial, PyTorchTrialContext
from toy_data import points


class WorstClass(MetricReducer):
    def __init__(self):
        self.reset()

    def reset(self):
        self.right = torch.zeros(3)
        self.counts = torch.zeros(3)

    def update(self, scores, labels):
        self.right += torch.bincount(labels[scores.argmax(1) == labels], minlength=3)
        self.counts += torch.bincount(labels, minlength=3)

    def per_slot_reduce(self):
        return self.right, self.counts

    def cross_slot_reduce(self, per_slot_metrics):
        right, counts = (sum(parts) for parts in zip(*per_slot_metrics))
        return float((right / counts.clamp(min=1)).min())


class Trial(PyTorchTrial):
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(8, 3))
        self.optimizer = context.wrap_optimizer(
            torch.optim.Adagrad(self.model.parameters(), lr=context.get_hparam("learning_rate"))
        )
        self.worst = context.experimental.wrap_reducer(WorstClass(), name="worst_class")
        self.largest = context.wrap_reducer(
            lambda values: max(values), name="largest_loss", for_training=False
        )

    def build_training_data_loader(self):
        return DataLoader(points(), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(points(30), batch_size=self.context.get_per_slot_batch_size())

    def train_batch(self, batch, epoch_idx, batch_idx):
        features, labels = batch
        scores = self.model(features)
        self.worst.update(scores, labels)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        features, labels = batch
        scores = self.model(features)
        self.worst.update(scores, labels)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        self.largest.update(loss.item())
        return {"validation_loss": loss}
