"""Custom optimizers: layer-wise rates, and a frozen embedding that is unfrozen later."""

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_scheduler,
    set_seed,
)

from detcore_torch.for_transformers import train

EPOCHS = 4


class UnfreezeEmbeddings(TrainerCallback):
    def on_epoch_begin(self, args, state, control, model=None, **kwargs):
        frozen = state.epoch is None or state.epoch < 2
        model.bert.embeddings.requires_grad_(not frozen)


set_seed(5)
ids = np.random.default_rng(5).integers(2, 20, size=(96, 6))
rows = [{"input_ids": i.tolist(), "labels": float(i.mean() / 20)} for i in ids]
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=1,
        problem_type="regression",
    )
)
groups = [
    {"params": model.bert.embeddings.parameters(), "lr": 5e-4},
    {"params": model.bert.encoder.parameters(), "lr": 2e-3, "weight_decay": 0.1},
    {"params": [*model.bert.pooler.parameters(), *model.classifier.parameters()], "lr": 5e-3},
]
optimizer = torch.optim.AdamW(groups)
schedule = get_scheduler("polynomial", optimizer, num_warmup_steps=3, num_training_steps=24)
args = TrainingArguments(
    "out",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=16,
    eval_strategy="epoch",
    save_steps=5,
    logging_steps=2,
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(
    model,
    args,
    train_dataset=rows,
    eval_dataset=rows[:32],
    optimizers=(optimizer, schedule),
    callbacks=[UnfreezeEmbeddings()],
)
train(trainer)
print("final", trainer.evaluate()["eval_loss"])
