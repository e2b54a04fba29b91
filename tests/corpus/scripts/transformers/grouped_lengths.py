"""Sequences of similar length share a batch, with padding and a restarting schedule."""

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

from detcore_torch.for_transformers import train

EPOCHS = 4
rng = np.random.default_rng(6)
rows = []
for _ in range(96):
    ids = rng.integers(2, 20, size=rng.integers(3, 12))
    rows.append({"input_ids": ids.tolist(), "labels": int(ids[0] % 2)})


def pad(batch):
    tensors = [torch.tensor(row["input_ids"]) for row in batch]
    ids = pad_sequence(tensors, batch_first=True)
    labels = torch.tensor([row["labels"] for row in batch])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


set_seed(6)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
    )
)
args = TrainingArguments(
    "out",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=16,
    learning_rate=3e-3,
    train_sampling_strategy="group_by_length",
    lr_scheduler_type="cosine_with_restarts",
    lr_scheduler_kwargs={"num_cycles": 2},
    eval_strategy="epoch",
    save_steps=4,
    logging_steps=3,
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    label_smoothing_factor=0.1,
    optim="adafactor",
)
trainer = Trainer(model, args, data_collator=pad, train_dataset=rows, eval_dataset=rows[:24])
train(trainer)
print("final", trainer.evaluate()["eval_loss"])
