"""Train a small network with summed gradients and an optimizer of one's own in a Trainer."""

from pathlib import Path

import torch
from _shared import UsedRecords, options
from torch.nn import functional
from torch.utils.data import Subset
from transformers import Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from detcore_torch.for_transformers import train

args = options()
used = UsedRecords(72)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )

    def forward(self, x, labels):
        found = self.layers(x)
        return {"loss": functional.mse_loss(found, labels), "logits": found}


class PointsTrainer(Trainer):
    def compute_loss(self, model, inputs, **more):
        ids = inputs.pop("ids")
        if model.training:
            used.log(self.state.global_step + 1, int(self.state.epoch), ids)
        return super().compute_loss(model, inputs, **more)


set_seed(1)
x = torch.randn(88, 4)
rows = [
    {"ids": number, "x": row, "labels": row.sum(0, keepdim=True)} for number, row in enumerate(x)
]
model = Network()
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
trainer = PointsTrainer(
    model=model,
    args=TrainingArguments(
        "output",
        num_train_epochs=args.epochs,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        dataloader_num_workers=args.workers,
        remove_unused_columns=False,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=6,
        save_steps=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    ),
    optimizers=(optimizer, scheduler),
    train_dataset=Subset(rows, range(72)),
    eval_dataset=Subset(rows, range(72, 88)),
)
if args.alone:
    last = get_last_checkpoint("output") if Path("output").exists() else None
    trainer.train(resume_from_checkpoint=last)
else:
    train(trainer)
