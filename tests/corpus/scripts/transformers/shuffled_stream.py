"""An iterable dataset with a shuffle buffer, and an end after a number of steps."""

import random

import torch
from torch.utils.data import IterableDataset
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments, set_seed

from detcore_torch.for_transformers import train

EPOCHS = 2


class Stream(IterableDataset):
    """Numbers in the order of a shuffle buffer, with noise."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        buffer = []
        for i in range(self.size):
            buffer.append(i)
            if len(buffer) == 10:
                yield self.make_row(buffer.pop(random.randrange(10)))
        random.shuffle(buffer)
        yield from map(self.make_row, buffer)

    def make_row(self, i):
        x = torch.tensor([i / self.size, 1.0]) + 0.01 * torch.randn(2)
        return {"x": x, "labels": torch.tensor([i / self.size])}


class Line(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.linear = torch.nn.Linear(2, 1)
        self.post_init()

    def forward(self, x, labels=None):
        predicted = self.linear(x)
        return {"loss": torch.nn.functional.mse_loss(predicted, labels), "logits": predicted}


set_seed(7)
model = Line(PretrainedConfig())
args = TrainingArguments(
    "out",
    max_steps=24,
    per_device_train_batch_size=8,
    learning_rate=0.05,
    eval_strategy="steps",
    eval_steps=6,
    save_steps=4,
    logging_steps=3,
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    remove_unused_columns=False,
)
trainer = Trainer(model, args, train_dataset=Stream(96), eval_dataset=Stream(16))
train(trainer)
print("final", trainer.state.global_step)
