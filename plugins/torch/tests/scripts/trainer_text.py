"""Train a small language model of characters, as the examples of transformers do."""

from pathlib import Path

from _shared import CHARACTERS, LENGTH, UsedRecords, options, windows
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from detcore_torch.for_transformers import train

args = options()
used = UsedRecords(80)


class LanguageTrainer(Trainer):
    def compute_loss(self, model, inputs, **more):
        ids = inputs.pop("ids")
        if model.training:
            used.log(self.state.global_step + 1, int(self.state.epoch), ids)
        return super().compute_loss(model, inputs, **more)


def rows(start, stop):
    return [{"ids": ids, "input_ids": row, "labels": row} for ids, row in windows(start, stop)]


set_seed(3)
config = GPT2Config(
    vocab_size=len(CHARACTERS),
    n_positions=LENGTH,
    n_embd=16,
    n_layer=1,
    n_head=2,
    bos_token_id=0,
    eos_token_id=0,
)
trainer = LanguageTrainer(
    model=GPT2LMHeadModel(config),
    args=TrainingArguments(
        "output",
        num_train_epochs=args.epochs,
        per_device_train_batch_size=8,
        learning_rate=args.rate / 3,
        lr_scheduler_type="cosine",
        warmup_steps=5,
        dataloader_num_workers=args.workers,
        remove_unused_columns=False,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=10,
        save_steps=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=rows(0, 80),
    eval_dataset=rows(80, 97),
)
if args.alone:
    last = get_last_checkpoint("output") if Path("output").exists() else None
    trainer.train(resume_from_checkpoint=last)
else:
    train(trainer)
