"""A schedule that waits for a plateau, evaluation every second step and the best checkpoint."""

import torch
from torch import nn
from torch.utils.data import WeightedRandomSampler
from transformers import Trainer, TrainingArguments, set_seed

from detcore_torch.for_transformers import train

EPOCHS = 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.LayerNorm(24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, x, labels):
        logits = self.body(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class BalancedTrainer(Trainer):
    def _get_train_sampler(self, train_dataset=None):
        weights = [3.0 if row["labels"] else 1.0 for row in self.train_dataset]
        return WeightedRandomSampler(weights, len(weights))


set_seed(8)
x = torch.randn(100, 6)
rows = [{"x": r, "labels": int(r[0] + r[1] > 1)} for r in x]
model = Net()
args = TrainingArguments(
    "out",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=16,
    learning_rate=0.05,
    optim="sgd",
    lr_scheduler_type="reduce_lr_on_plateau",
    lr_scheduler_kwargs={"patience": 1, "factor": 0.3},
    metric_for_best_model="loss",
    eval_strategy="steps",
    eval_steps=2,
    save_steps=4,
    load_best_model_at_end=True,
    logging_steps=2,
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    remove_unused_columns=False,
    dataloader_drop_last=True,
)
trainer = BalancedTrainer(model, args, train_dataset=rows[:80], eval_dataset=rows[80:])
train(trainer)
print("final", trainer.evaluate()["eval_loss"], trainer.state.best_global_step)
