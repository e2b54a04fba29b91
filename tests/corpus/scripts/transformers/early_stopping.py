"""A small BERT stops early, and the best model is loaded at the end."""

import numpy as np
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from detcore_torch.for_transformers import train

EPOCHS = 6


def make_rows(n, seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, 30, size=(n, 8))
    labels = (ids[:, 0] > ids[:, 1]).astype(int)
    return [{"input_ids": i.tolist(), "labels": int(label)} for i, label in zip(ids, labels)]


def compute_metrics(prediction):
    predicted = prediction.predictions.argmax(-1)
    return {"accuracy": float((predicted == prediction.label_ids).mean())}


set_seed(1)
config = BertConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
)
model = BertForSequenceClassification(config)
args = TrainingArguments(
    "out",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=16,
    learning_rate=5e-3,
    eval_strategy="epoch",
    save_strategy="epoch",
    load_best_model_at_end=True,
    metric_for_best_model="accuracy",
    logging_steps=2,
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    warmup_steps=4,
)
trainer = Trainer(
    model,
    args,
    train_dataset=make_rows(80, 0),
    eval_dataset=make_rows(40, 1),
    compute_metrics=compute_metrics,
    callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
)
train(trainer)
print("final", trainer.evaluate()["eval_accuracy"], trainer.state.best_metric)
