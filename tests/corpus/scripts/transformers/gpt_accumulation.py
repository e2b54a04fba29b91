"""A small GPT-2 from scratch, with gradient accumulation, cosine schedule and bfloat16."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from detcore_torch.for_transformers import hyperparameters, train

EPOCHS = 4
hparams = hyperparameters(width=16, learning_rate=3e-3)
set_seed(2)
text = "the quick brown fox jumps over the lazy dog. " * 40
vocabulary = {c: i for i, c in enumerate(sorted(set(text)))}
ids = torch.tensor([vocabulary[c] for c in text])
blocks = [{"input_ids": b, "labels": b} for b in ids[: len(ids) // 16 * 16].view(-1, 16)]
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=len(vocabulary),
        n_positions=16,
        n_embd=hparams["width"],
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
)
args = TrainingArguments(
    "out",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=hparams["learning_rate"],
    lr_scheduler_type="cosine",
    warmup_steps=5,
    weight_decay=0.01,
    max_grad_norm=0.5,
    bf16=True,
    eval_strategy="steps",
    eval_steps=6,
    save_steps=4,
    logging_steps=3,
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model, args, train_dataset=blocks[:90], eval_dataset=blocks[90:])
train(trainer, hparams=hparams)
print("final", trainer.evaluate()["eval_loss"])
