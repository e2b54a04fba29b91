"""Train a network on each of three folds with equal arguments, like a k-fold script.

The variable ``KILL_AT`` is the number of the backward pass of this process at which it kills
itself, or "between" for the end of the second fold.
"""

import hashlib
import os
import signal

import torch
from _shared import options
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset

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
x = torch.randn(48, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))


def make_network():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))


def train_with_trainer(training, validation):
    from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

    from detcore_torch.for_transformers import train

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = make_network()

        def forward(self, x, labels):
            result = self.layers(x)
            return {"loss": functional.mse_loss(result, labels), "logits": result}

    model = Network()
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
        train_dataset=[{"x": row, "labels": label} for row, label in training],
        eval_dataset=[{"x": row, "labels": label} for row, label in validation],
        callbacks=[EarlyStoppingCallback(2)],
    )
    train(trainer)
    return model, trainer.state.global_step


def train_with_lightning(training, validation):
    import lightning
    from lightning.pytorch.callbacks import EarlyStopping

    from detcore_torch.for_lightning import fit

    class Network(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = make_network()

        def training_step(self, batch, batch_idx):
            return functional.mse_loss(self.layers(batch[0]), batch[1])

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", functional.mse_loss(self.layers(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1.0)

    model = Network()
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
        x, y = next(iter(DataLoader(validation, len(validation))))
        with torch.no_grad():
            return {"val_loss": functional.mse_loss(model(x), y)}

    with open_training(
        accelerator, loader, validate=evaluate, max_steps=6, validate_every=2
    ) as run:
        for x, y in run:
            loss = functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            run.report(train_loss=loss)
            if run.step == 4:
                break  # ends early, which does not follow from the length
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
