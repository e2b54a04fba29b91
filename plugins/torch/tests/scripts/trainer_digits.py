"""Classify noisy scans of digits, as the examples of transformers do."""

from pathlib import Path

import torch
from _shared import Digits, UsedRecords, options
from torch.nn import functional
from transformers import Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from detcore_torch.for_transformers import train

args = options()
used = UsedRecords(96)


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, 32),
            torch.nn.BatchNorm1d(32),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.1),
            torch.nn.Linear(32, 10),
        )

    def forward(self, images, labels):
        scores = self.layers(images)
        return {"loss": functional.cross_entropy(scores, labels), "logits": scores}


class DigitsTrainer(Trainer):
    def compute_loss(self, model, inputs, **more):
        ids = inputs.pop("ids")
        if model.training:
            used.log(self.state.global_step + 1, int(self.state.epoch), ids)
        return super().compute_loss(model, inputs, **more)


def collate(records):
    ids, images, labels = zip(*records, strict=True)
    return {
        "ids": torch.tensor(ids), "images": torch.stack(images), "labels": torch.stack(labels)
    }  # fmt: skip


set_seed(2)
trainer = DigitsTrainer(
    model=Classifier(),
    args=TrainingArguments(
        "output",
        num_train_epochs=args.epochs,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        bf16=True,
        dataloader_num_workers=args.workers,
        dataloader_persistent_workers=args.workers > 0,
        remove_unused_columns=False,
        logging_steps=5,
        eval_strategy="epoch",
        save_steps=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    ),
    data_collator=collate,
    train_dataset=Digits(0, 96),
    eval_dataset=Digits(96, 128, noise=0),
)
if args.alone:
    last = get_last_checkpoint("output") if Path("output").exists() else None
    trainer.train(resume_from_checkpoint=last)
else:
    train(trainer)
