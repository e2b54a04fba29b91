"""Train a small language model, as the examples of transformers do."""

import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from detcore_torch.for_transformers import hyperparameters, train


def texts(count, seed):
    ids = torch.randint(50, (count, 8), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": row} for row in ids]


hparams = hyperparameters(learning_rate=1e-3, width=16)
set_seed(1)
config = GPT2Config(
    vocab_size=50,
    n_positions=8,
    n_embd=hparams["width"],
    n_layer=1,
    n_head=2,
    bos_token_id=0,
    eos_token_id=0,
)
model = GPT2LMHeadModel(config)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        "out",
        learning_rate=hparams["learning_rate"],
        num_train_epochs=int(os.environ.get("EPOCHS", "2")),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=6,
        save_steps=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=texts(70, 0),
    eval_dataset=texts(16, 1),
)
train(trainer, hparams=hparams)
trained = {"model": model, "optimizer": trainer.optimizer, "scheduler": trainer.lr_scheduler}
