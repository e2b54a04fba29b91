"""Train a network on each of three folds, with equal arguments, as k-fold scripts do.

The variable ``KILL_AT`` is the number of the backward pass of this process at which it kills
itself, or "between" for the end of the second fold.
"""

import hashlib
import os
import signal

import torch
from _shared import TASKS, options, read_points
from torch.utils.data import DataLoader, Subset

args = options()
kill_at = os.environ.get("KILL_AT", "")
num_backward = 0
backward = torch.Tensor.backward


def kill_in_backward(*arguments, **more):
    global num_backward
    num_backward += 1
    if str(num_backward) == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return backward(*arguments, **more)


torch.Tensor.backward = kill_in_backward
torch.manual_seed(1)
data = [{"x": row["x"], "labels": row["labels"]} for row in read_points(0, 48)]
make_network = TASKS["points"].make_network


def train_with_trainer(training, validation):
    from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

    from detcore_torch.for_transformers import train

    model = make_network()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            "output",
            num_train_epochs=3,
            per_device_train_batch_size=8,
            logging_steps=2,
            eval_strategy="steps",
            eval_steps=2,
            save_steps=2,
            seed=7,
            learning_rate=1.0,  # too high: the validation loss rises, and training ends early
            metric_for_best_model="eval_loss",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=training,
        eval_dataset=validation,
        callbacks=[EarlyStoppingCallback(2)],
    )
    train(trainer)
    return model, trainer.state.global_step


def train_with_lightning(training, validation):
    import lightning
    from lightning.pytorch.callbacks import EarlyStopping

    from detcore_torch.for_lightning import fit

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = make_network()

        def training_step(self, batch, batch_idx):
            return self.network(**batch)["loss"]

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.network(**batch)["loss"])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1.0)

    model = Module()
    trainer = lightning.Trainer(
        max_epochs=3,
        val_check_interval=2,
        check_val_every_n_epoch=None,
        accelerator="cpu",
        devices=1,
        logger=False,
        callbacks=[EarlyStopping("val_loss", patience=2)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    fit(trainer, model, DataLoader(training, 8, shuffle=True), DataLoader(validation, 8))
    return model, None


def train_with_accelerate(training, validation):
    from accelerate import Accelerator

    from detcore_torch.for_accelerate import training as open_training

    accelerator = Accelerator(cpu=True)
    model = make_network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    loader = DataLoader(training, 8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    def evaluate():
        (batch,) = DataLoader(validation, len(validation))
        with torch.no_grad():
            return {"val_loss": model(**batch)["loss"]}

    with open_training(
        accelerator, loader, validate=evaluate, max_steps=6, validate_every=2
    ) as run:
        for batch in run:
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            run.report(train_loss=loss)
            if run.step == 4:
                break  # ends early, which the next start cannot know from the length
    return model, run.step


train_fold = globals()[f"train_with_{args.case}"]
for fold in range(3):
    held_out = range(16 * fold, 16 * fold + 16)
    model, steps = train_fold(
        Subset(data, [number for number in range(48) if number not in held_out]),
        Subset(data, held_out),
    )
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:12]
    print(f"fold {fold}: {digest}, {steps} steps", flush=True)
    if fold == 1 and kill_at == "between":
        os.kill(os.getpid(), signal.SIGKILL)
