"""A subclass of Trainer that counts and averages in attributes, and uses them in its loss."""

import torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed

from detcore_torch.for_transformers import train

EPOCHS = 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x, labels=None):
        logits = self.body(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class AnnealedTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.temperature = 3.0
        self.average_loss = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs["logits"] / self.temperature, inputs["labels"])
        if model.training:
            self.temperature = max(0.5, self.temperature * 0.95)
            value = loss.item()
            old = value if self.average_loss is None else self.average_loss
            self.average_loss = 0.9 * old + 0.1 * value
            loss = loss / self.average_loss
        return (loss, outputs) if return_outputs else loss


set_seed(9)
x = torch.randn(96, 5)
rows = [{"x": row, "labels": int(row[:3].argmax())} for row in x]
model = Net()
args = TrainingArguments(
    "out",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=16,
    learning_rate=1e-2,
    eval_strategy="epoch",
    save_steps=4,
    logging_steps=2,
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    remove_unused_columns=False,
)
trainer = AnnealedTrainer(model, args, train_dataset=rows, eval_dataset=rows[:32])
train(trainer)
print("final", trainer.temperature, trainer.average_loss)
