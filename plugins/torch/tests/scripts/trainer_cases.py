"""Features of the transformers Trainer as in its documentation, selected by ``--case``."""

import logging
import os
import random
from pathlib import Path

import torch
from _logging_trainer import LoggingTrainer
from _shared import Network, UsedRecords, options
from torch.utils.data import IterableDataset, get_worker_info
from transformers import (
    EarlyStoppingCallback,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import ExportableState

from detcore_torch.for_transformers import train

args = options()


class Rows(torch.utils.data.Dataset):
    def __init__(self, start, stop):
        self.start, self.stop = start, stop

    def __len__(self):
        return self.stop - self.start

    def __getitem__(self, index):
        row = x[self.start + index]
        return {"ids": index, "x": row, "labels": labels[self.start + index]}


class ShuffledStream(IterableDataset):
    """Yields its records in a new order per epoch, divided among the workers."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        indices = range(first, len(self.rows), step)
        order = torch.randperm(len(indices)).tolist()
        random.shuffle(order)
        for index in order:
            row = self.rows[indices[index]]
            yield {**row, "x": row["x"] + 0.1 * torch.randn(4)}


class ShortStream(IterableDataset):
    def __iter__(self):
        return iter([rows[index] for index in range(24)])


decay = 0.1


class Average(TrainerCallback):
    """Stores a moving average of the weights in an attribute, and a number in a global variable."""

    def __init__(self):
        self.shadow = None
        self.history = []
        self.num_bad = 0
        self.generator = random.Random(5)
        self.rank_generator = random.Random(int(os.environ.get("RANK", "0")))
        self.rank_draws = []
        self.epoch_generator = random.Random(6)
        self.epoch_draws = []

    def on_epoch_begin(self, args, state, control, **_):
        self.epoch_draws.append(self.epoch_generator.random())

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
        self.trainer, self.optimizer = trainer, optimizer  # saved elsewhere
        self.shadow = {name: value.clone() for name, value in model.state_dict().items()}

    def on_step_end(self, args, state, control, model=None, optimizer=None, **_):
        for name, value in model.state_dict().items():
            self.shadow[name].mul_(0.9).add_(value, alpha=0.1)
        global decay
        decay *= 0.9
        optimizer.param_groups[0]["weight_decay"] = self.generator.random() * decay
        self.rank_draws.append(self.rank_generator.random())  # different on each rank

    def on_evaluate(self, args, state, control, metrics=None, **_):
        self.history.append(metrics["eval_loss"])
        if metrics["eval_loss"] > min(self.history):
            self.num_bad += 1
        if self.num_bad == 3:
            control.should_training_stop = True


class Writer(TrainerCallback):
    file = None

    def on_step_end(self, args, state, control, **_):
        if self.file is None:
            self.file = Path("log.txt").open("w")  # noqa: SIM115  # a fault of the script
        self.file.write(f"{state.global_step}\n")


class Unfreezing(TrainerCallback):
    """Trains the first layer from the fifth step on, in a separate parameter group."""

    def on_step_end(self, args, state, control, model=None, optimizer=None, **_):
        if state.global_step == 5:
            model.layers[0].requires_grad_(True)
            group = {"params": list(model.layers[0].parameters()), "lr": 0.01}
            optimizer.add_param_group(group)


class StepCounter(TrainerCallback, ExportableState):
    def __init__(self, start=0):
        self._start, self._steps = start, 0

    @property
    def steps(self):
        return self._steps

    @steps.setter
    def steps(self, steps):
        self._steps = steps

    def on_step_end(self, args, state, control, **_):
        self.steps += 1

    def state(self):
        return {"args": {"start": self._start}, "attributes": {"steps": self.steps}}


class Summary:
    """The script's final values, as an object with a state."""

    def state_dict(self):
        state = trainer.state
        names = (
            "shadow", "history", "num_bad", "rank_draws", "epoch_draws", "_steps",
            "early_stopping_patience_counter",
        )  # fmt: skip
        return {
            "step": state.global_step,
            "losses": trainer.losses,
            "best": [state.best_metric, state.best_global_step, state.best_model_checkpoint],
            "evaluations": [
                [log["step"], log["eval_loss"]] for log in state.log_history if "eval_loss" in log
            ],
            "callbacks": [
                [getattr(callback, name, None) for name in names]
                for callback in trainer.callback_handler.callbacks
            ],
        }


def measure_accuracy(prediction):
    classes = prediction.predictions.argmax(-1)
    return {"accuracy": float((classes == prediction.label_ids).mean())}


set_seed(1)
x = torch.randn(80, 4)
labels = (x.sum(1) + torch.randn(80) > 0).long()
rows, data, callbacks = Rows(0, 48), None, []
every_step = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
settings = {"eval_strategy": "steps", "eval_steps": 4, "save_steps": 2}
if args.case == "early_stopping":
    settings = {
        **every_step, "load_best_model_at_end": True, "metric_for_best_model": "accuracy",
        "greater_is_better": True,
    }  # fmt: skip
    callbacks = [EarlyStoppingCallback(early_stopping_patience=7)]
elif args.case == "best_at_end":  # the best validation among those that a checkpoint follows
    settings = {**every_step, "save_steps": 3, "load_best_model_at_end": True}
elif args.case == "save_best":
    settings = {
        "eval_strategy": "epoch", "save_strategy": "best", "load_best_model_at_end": True,
        "metric_for_best_model": "eval_accuracy", "save_total_limit": 1,
    }  # fmt: skip
elif args.case == "plateau":
    settings = {
        **every_step, "lr_scheduler_type": "reduce_lr_on_plateau",
        "lr_scheduler_kwargs": {"patience": 1, "factor": 0.5},
    }  # fmt: skip
elif args.case == "callbacks":
    settings = every_step
    callbacks = [Average(), StepCounter()]
elif args.case == "unfreeze":
    callbacks = [Unfreezing()]
elif args.case == "unsaved":
    logging.basicConfig(force=True)
    callbacks = [Writer()]
elif args.case == "stream":
    data = ShuffledStream(rows)
elif args.case == "short_stream":
    data = ShortStream()
    settings = {**settings, "max_steps": 24}
layers = torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
model, optimizers = Network(*layers), (None, None)
if args.case == "unfreeze":
    model.layers[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.layers[2].parameters(), 0.1)
    optimizers = (optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30))
trainer = LoggingTrainer(
    UsedRecords(48),
    model=model,
    args=TrainingArguments(
        "output",
        **{"num_train_epochs": args.epochs, **settings},
        per_device_train_batch_size=4,
        learning_rate=0.1,
        optim="sgd" if args.case == "plateau" else "adamw_torch",
        train_sampling_strategy="sequential",
        dataloader_num_workers=args.workers,
        remove_unused_columns=False,
        logging_steps=5,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=rows if data is None else data,
    eval_dataset=Rows(48, 80),
    compute_metrics=measure_accuracy,
    callbacks=callbacks,
    optimizers=optimizers,
)
if args.alone:
    trainer.train()
else:
    train(trainer)
trained = {
    "model": trainer.model,
    "optimizer": trainer.optimizer,
    "lr_scheduler": trainer.lr_scheduler,
    "summary": Summary(),
}
best = trainer.state.best_model_checkpoint
if best is not None and trainer.args.load_best_model_at_end:
    assert Path(best, "model.safetensors").exists()
