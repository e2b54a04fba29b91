"""Meta-learning: copies of the model learn tasks, and the trial evaluates all tasks in one call."""

import copy

import torch
from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext
from toy_data import points


class Tasks(torch.utils.data.Dataset):
    """Each record is a task: support and query sets of points with permuted classes."""

    def __init__(self, num_tasks):
        self.features, self.labels = points(16 * num_tasks)[:]
        self.num_tasks = num_tasks

    def __len__(self):
        return self.num_tasks

    def __getitem__(self, index):
        order = torch.randperm(3)
        rows = slice(16 * index, 16 * index + 16)
        return self.features[rows], order[self.labels[rows]]


class Trial(PyTorchTrial):
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(
            torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 3))
        )
        self.optimizer = context.wrap_optimizer(
            torch.optim.Adam(self.model.parameters(), lr=context.get_hparam("learning_rate"))
        )

    def build_training_data_loader(self):
        return DataLoader(
            Tasks(24), batch_size=self.context.get_per_slot_batch_size(), shuffle=True
        )

    def build_validation_data_loader(self):
        return DataLoader(Tasks(4), batch_size=1)

    def learn(self, features, labels):
        learner = copy.deepcopy(self.model)
        sgd = torch.optim.SGD(learner.parameters(), lr=0.1)
        for _ in range(2):
            with torch.enable_grad():
                loss = torch.nn.functional.cross_entropy(learner(features[:8]), labels[:8])
                gradients = torch.autograd.grad(loss, list(learner.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(learner.parameters(), gradients):
                    parameter -= sgd.param_groups[0]["lr"] * gradient
        return learner

    def train_batch(self, batch, epoch_idx, batch_idx):
        total = 0.0
        for features, labels in zip(*batch):
            learner = self.learn(features, labels)
            loss = torch.nn.functional.cross_entropy(learner(features[8:]), labels[8:])
            gradients = torch.autograd.grad(loss, list(learner.parameters()))
            for parameter, gradient in zip(self.model.parameters(), gradients):
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
            total += loss.item()
        self.context.step_optimizer(self.optimizer)
        return {"loss": total / len(batch[0])}

    def evaluate_full_dataset(self, data_loader):
        assert isinstance(data_loader, torch.utils.data.DataLoader)
        right = torch.zeros(len(data_loader.dataset))
        for index, batch in enumerate(data_loader):
            features, labels = (part[0] for part in self.context.to_device(batch))
            learner = self.learn(features, labels)
            right[index] = (learner(features[8:]).argmax(1) == labels[8:]).float().mean()
        return {"validation_loss": 1 - right.mean().item(), "tasks": float(len(data_loader))}
