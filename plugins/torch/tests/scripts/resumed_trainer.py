"""Train with the transformers Trainer; see `resumed_task`."""

from resumed_task import Network, args, change_weights, make_optimizer, records
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

from detcore_torch.for_transformers import train


class Changes(TrainerCallback):
    def on_step_begin(self, args, state, control, model, **_):
        if state.global_step == 30:
            change_weights(model)


set_seed(1)
model = Network()
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        "output",
        max_steps=60,
        per_device_train_batch_size=4,
        logging_steps=5,
        save_steps=30,
        eval_steps=30,
        eval_strategy="steps",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    ),
    optimizers=(make_optimizer(model), None),
    callbacks=[Changes()],
    train_dataset=records,
    eval_dataset=records[:8],
)
train(trainer, inexact_resume=args.inexact_resume)
