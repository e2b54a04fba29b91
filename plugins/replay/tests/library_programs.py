"""Training scripts of Hugging Face and Lightning; with ``--detcore``, detcore saves and resumes."""

from __future__ import annotations

__all__ = ["LIBRARY_PROGRAMS"]

# `python train.py` starts and `python train.py --resume` resumes. KILL_AT is used by hand only.
_TASK = """
import os, signal, sys, time
import torch

def draw_noise():
    generator = torch.Generator().manual_seed(5)
    while True:
        yield torch.randn(8, 1, generator=generator)

FAULT, NOISE = {fault!r}, draw_noise()
x = torch.randn(96, 4, generator=torch.Generator().manual_seed(3))
records = [dict(x=row, labels=row[:1]) for row in x]

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layers = torch.nn.Linear(4, 64), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1)
        self.layers, self.batches = torch.nn.Sequential(*layers), 0

    def forward(self, x, labels):
        outputs = self.layers(x)
        if self.training:
            self.batches += 1
            if self.batches == int(os.environ.get("KILL_AT", 0)):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.03)
            if FAULT == "generator":
                outputs = outputs + next(NOISE)
        return dict(loss=torch.nn.functional.mse_loss(outputs, labels), logits=outputs)
"""
_TRAINER = """
from transformers import Trainer, TrainingArguments, set_seed

set_seed(1)
trainer = Trainer(
    model=Network(),
    args=TrainingArguments(
        "output", max_steps={num_steps}, per_device_train_batch_size=8, logging_steps=5,
        eval_strategy="steps", eval_steps=5, save_steps=5, report_to="none", disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=records,
    eval_dataset=records[:8],
)
if "--detcore" in sys.argv:
    from detcore_torch.for_transformers import train
    train(trainer)
else:
    trainer.train(resume_from_checkpoint="--resume" in sys.argv)
    trainer.save_model("final")
"""
_LIGHTNING = """
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = Network()

    def training_step(self, batch, batch_idx):
        return self.network(**batch)["loss"]

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.network(**batch)["loss"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.01)

lightning.seed_everything(1)
model = Module()
trainer = lightning.Trainer(
    max_steps={num_steps}, accelerator="cpu", logger=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[ModelCheckpoint("saved", save_last=True)],
)
loaders = DataLoader(records, 8, shuffle=True), DataLoader(records[:8], 8)
if "--detcore" in sys.argv:
    from detcore_torch.for_lightning import fit
    fit(trainer, model, *loaders)
else:
    trainer.fit(model, *loaders, ckpt_path="last" if "--resume" in sys.argv else None)
    os.mkdir("final")
    torch.save(model.state_dict(), "final/model.pt")
"""
LIBRARY_PROGRAMS = {"trainer": _TASK + _TRAINER, "lightning": _TASK + _LIGHTNING}
