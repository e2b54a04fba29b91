"""Train with the transformers Trainer; see `resumed_task`."""

import transformers.trainer
from resumed_task import (
    Network,
    Progress,
    args,
    change_weights,
    fault,
    make_optimizer,
    make_scaler,
    make_scheduler,
    plant_faults,
    records,
)
from transformers import (
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from detcore_torch.for_transformers import train


class Averaging(Progress, TrainerCallback):
    def on_step_begin(self, args, state, control, model, **_):
        if state.global_step == 30:
            change_weights(model)

    def on_step_end(self, args, state, control, model, **_):
        self.update(model)


class CountingTrainer(Trainer):
    num_losses = 0

    def compute_loss(self, *args, **options):
        loss = super().compute_loss(*args, **options)
        if self.model.training:
            self.num_losses += 1
        return loss


Averaging.__name__ = "Progress"  # as in the other scripts
if fault == "skip":
    skip = transformers.trainer.skip_first_batches
    transformers.trainer.skip_first_batches = lambda loader, n: skip(loader, n - 1)
set_seed(1)
model, progress = Network(), Averaging()
stopping = EarlyStoppingCallback(50)
optimizer = make_optimizer(model)
trainer = CountingTrainer(
    model=model,
    args=TrainingArguments(
        "output",
        max_steps=60,
        per_device_train_batch_size=4,
        logging_steps=5,
        save_steps=30,
        eval_steps=30,
        eval_strategy="steps",
        load_best_model_at_end=True,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    ),
    optimizers=(optimizer, make_scheduler(optimizer)),
    callbacks=[progress, stopping],
    train_dataset=records,
    eval_dataset=records[:8],
)
trainer.accelerator.scaler = make_scaler()


def list_more_faults():
    (best,) = (c._best for c in trainer.callback_handler.callbacks if hasattr(c, "_best"))
    return {
        "data position": lambda: setattr(trainer.state, "global_step", 29),
        "end of training": lambda: setattr(trainer.control, "should_training_stop", True),
        "best metric": lambda: setattr(trainer.state, "best_metric", 0.0),
        "counter of the library": lambda: setattr(stopping, "early_stopping_patience_counter", 7),
        "best model": lambda: best._tensors["last.bias"].zero_(),
        "attribute of the trainer": lambda: setattr(trainer, "num_losses", 0),
    }


plant_faults(model, progress, list_more_faults)
train(trainer, inexact_resume=args.inexact_resume)
