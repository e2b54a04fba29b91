"""A callback with moving averages, a history and its own generator; noisy embeddings."""

import random

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForTokenClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from detcore_torch.for_transformers import train

EPOCHS = 4


class AverageWeights(TrainerCallback):
    def __init__(self, decay):
        self.decay = decay
        self.average = {}
        self.learning_rates = []
        self.rng = np.random.default_rng(4)

    def on_step_end(self, args, state, control, model=None, lr_scheduler=None, **kwargs):
        for name, parameter in model.named_parameters():
            value = parameter.detach()
            if name not in self.average:
                self.average[name] = value.clone()
            self.average[name].lerp_(value, 1 - self.decay)
        self.learning_rates.append(lr_scheduler.get_last_lr()[0])

    def on_epoch_begin(self, args, state, control, model=None, **kwargs):
        model.dropout.p = float(self.rng.uniform(0.0, 0.3))


def shift_labels(rows):
    """Collate with random masking."""
    ids = torch.tensor([row["input_ids"] for row in rows])
    labels = torch.tensor([row["labels"] for row in rows])
    for row in ids:
        row[random.randrange(8)] = 1
    return {"input_ids": ids, "labels": labels}


set_seed(4)
ids = np.random.default_rng(4).integers(2, 20, size=(96, 8))
rows = [{"input_ids": i.tolist(), "labels": (i % 2).tolist()} for i in ids]
model = BertForTokenClassification(
    BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=2,
    )
)
args = TrainingArguments(
    "out",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=16,
    learning_rate=3e-3,
    eval_strategy="epoch",
    save_steps=4,
    logging_steps=3,
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    neftune_noise_alpha=2.0,
    lr_scheduler_type="linear",
    dataloader_num_workers=2,
)
callback = AverageWeights(0.9)
trainer = Trainer(
    model,
    args,
    data_collator=shift_labels,
    train_dataset=rows[:80],
    eval_dataset=rows[80:],
    callbacks=[callback],
)
train(trainer)
average = callback.average
print("final", sum(callback.learning_rates), len(callback.learning_rates))
