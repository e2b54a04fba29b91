"""Train a small language model with the transformers Trainer.

The text is included in Python (the topics of ``help("for")``). The detcore lines are the import,
``hyperparameters`` and ``train``.
"""

import dataclasses
from pydoc_data.topics import topics

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)

from detcore_torch.for_transformers import hyperparameters, train

TEXT = "\n".join(text for _, text in sorted(topics.items()))
CHARACTERS = {character: number for number, character in enumerate(sorted(set(TEXT)))}
LENGTH = 64


@dataclasses.dataclass
class DataArguments:
    """Data arguments in addition to the transformers arguments."""

    max_train_samples: int | None = None
    max_eval_samples: int | None = None


def make_windows(text, limit):
    """Return windows of a text. The model shifts the labels itself."""
    numbers = torch.tensor([CHARACTERS[character] for character in text])
    rows = numbers[: len(numbers) // LENGTH * LENGTH].view(-1, LENGTH)[:limit]
    return [{"input_ids": row, "labels": row} for row in rows]


parser = HfArgumentParser((TrainingArguments, DataArguments))
parser.set_defaults(
    output_dir="output",
    learning_rate=3e-3,
    warmup_steps=20,
    num_train_epochs=1,
    per_device_train_batch_size=16,
    gradient_accumulation_steps=2,
    logging_steps=50,
    eval_strategy="steps",
    eval_steps=100,
    save_steps=100,
    report_to="none",
    disable_tqdm=True,
)
args, data = parser.parse_args_into_dataclasses()
hparams = hyperparameters(width=64, num_layers=2)
set_seed(args.seed)
config = GPT2Config(
    vocab_size=len(CHARACTERS),
    n_positions=LENGTH,
    n_embd=hparams["width"],
    n_layer=hparams["num_layers"],
    n_head=4,
    bos_token_id=0,
    eos_token_id=0,
)
split = len(TEXT) * 9 // 10
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=args,
    train_dataset=make_windows(TEXT[:split], data.max_train_samples),
    eval_dataset=make_windows(TEXT[split:], data.max_eval_samples),
)
train(trainer, hparams=hparams)
