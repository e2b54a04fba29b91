"""A recurrent language model that carries its hidden state from batch to batch."""

import torch
from determined.pytorch import DataLoader, LRScheduler, PyTorchTrial, PyTorchTrialContext
from toy_data import points

LENGTH = 6


class Text(torch.utils.data.Dataset):
    """Windows of a text, and the following characters."""

    def __init__(self, num_windows):
        self.text = points(200)[:][1]
        self.num_windows = num_windows

    def __len__(self):
        return self.num_windows

    def __getitem__(self, index):
        start = index * LENGTH
        return {
            "tokens": self.text[start : start + LENGTH],
            "following": self.text[start + 1 : start + LENGTH + 1],
        }


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(3, 8)
        self.cells = torch.nn.LSTM(8, 16, batch_first=True)
        self.dropout = torch.nn.Dropout(0.2)
        self.output = torch.nn.Linear(16, 3)

    def forward(self, tokens, hidden):
        states, hidden = self.cells(self.embedding(tokens), hidden)
        return self.output(self.dropout(states)), hidden


class Trial(PyTorchTrial):
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.batch_size = context.get_per_slot_batch_size()
        self.model = context.wrap_model(Model())
        self.hidden = None
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=context.get_hparam("learning_rate"))
        )
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.98),
            step_mode=LRScheduler.StepMode.STEP_EVERY_BATCH,
        )

    def build_training_data_loader(self):
        loader = DataLoader(Text(32), batch_size=self.batch_size, drop_last=True)
        assert len(loader) == 32 // self.batch_size
        return loader

    def build_validation_data_loader(self):
        return DataLoader(Text(16), batch_size=self.batch_size, drop_last=True)

    def loss_of(self, batch, hidden):
        scores, hidden = self.model(batch["tokens"], hidden)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), batch["following"].flatten())
        return loss, tuple(part.detach() for part in hidden)

    def train_batch(self, batch, epoch_idx, batch_idx):
        if self.context.is_epoch_start():
            self.hidden = None
        loss, self.hidden = self.loss_of(batch, self.hidden)
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer,
            clip_grads=lambda params: torch.nn.utils.clip_grad_norm_(params, 0.25),
        )
        return {"loss": loss}

    def evaluate_full_dataset(self, data_loader):
        hidden, total = None, 0.0
        for batch in data_loader:
            loss, hidden = self.loss_of(self.context.to_device(batch), hidden)
            total += loss.item()
        return {"validation_loss": total / len(data_loader)}
