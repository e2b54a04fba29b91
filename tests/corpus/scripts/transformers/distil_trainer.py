"""A subclass of Trainer with a teacher and a weighted loss."""

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments, set_seed

from detcore_torch.for_transformers import train

EPOCHS = 4


class PointsConfig(PretrainedConfig):
    model_type = "points"

    def __init__(self, width=8, **kwargs):
        super().__init__(**kwargs)
        self.width = width


class PointsModel(PreTrainedModel):
    config_class = PointsConfig

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.Sequential(
            nn.Linear(4, config.width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(config.width, 3)
        )
        self.post_init()

    def forward(self, x, labels=None):
        logits = self.layers(x)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class DistillationTrainer(Trainer):
    def __init__(self, *args, teacher=None, class_weights=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.teacher = teacher.eval()
        self.class_weights = class_weights

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(inputs["x"])
        hard = nn.functional.cross_entropy(
            outputs["logits"], inputs["labels"], weight=self.class_weights
        )
        with torch.no_grad():
            target = self.teacher(inputs["x"])["logits"].softmax(-1)
        soft = nn.functional.kl_div(
            outputs["logits"].log_softmax(-1), target, reduction="batchmean"
        )
        loss = hard + 0.5 * soft
        return (loss, outputs) if return_outputs else loss


set_seed(3)
x = torch.randn(112, 4)
rows = [{"x": a, "labels": int(a[:3].argmax())} for a in x]
teacher = PointsModel(PointsConfig(width=32))
model = PointsModel(PointsConfig())
args = TrainingArguments(
    "out",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=16,
    learning_rate=1e-2,
    eval_strategy="steps",
    eval_steps=5,
    save_steps=3,
    logging_steps=4,
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    optim="adamw_torch",
    remove_unused_columns=False,
)
trainer = DistillationTrainer(
    model,
    args,
    train_dataset=rows[:96],
    eval_dataset=rows[96:],
    teacher=teacher,
    class_weights=torch.tensor([1.0, 2.0, 0.5]),
)
train(trainer)
print("final", trainer.evaluate()["eval_loss"])
