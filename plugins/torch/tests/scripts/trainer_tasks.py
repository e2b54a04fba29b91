"""Train with a transformers Trainer: points with a custom optimizer, and a small GPT-2."""

from pathlib import Path

from _logging_trainer import LoggingTrainer
from _shared import CHARACTERS, LENGTH, TASKS, UsedRecords, make_optimizer, options
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from detcore_torch.for_transformers import train

args = options()
task = TASKS[args.task]


set_seed(1)
training, validation = task.read_both()
optimizers = None, None
if args.task == "text":
    config = GPT2Config(
        vocab_size=len(CHARACTERS),
        n_positions=LENGTH,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    training, validation = (
        [{"ids": row["ids"], "input_ids": row["x"], "labels": row["x"]} for row in rows]
        for rows in (training, validation)
    )
    settings = {"lr_scheduler_type": "cosine", "warmup_steps": 5, "eval_steps": 10}
else:
    model = task.make_network()
    settings = {"bf16": True, "eval_strategy": "epoch"}
if args.task == "points":
    optimizers = make_optimizer(args, model)
    settings = {"gradient_accumulation_steps": 2, "eval_steps": 6}
trainer = LoggingTrainer(
    UsedRecords(task.num_training),
    model=model,
    args=TrainingArguments(
        "output",
        **{"eval_strategy": "steps", **settings},
        num_train_epochs=args.epochs,
        per_device_train_batch_size=task.batch_size,
        learning_rate=args.rate,
        dataloader_num_workers=args.workers,
        dataloader_persistent_workers=args.task == "digits" and args.workers > 0,
        remove_unused_columns=False,
        logging_steps=5,
        save_steps=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    ),
    optimizers=optimizers,
    train_dataset=training,
    eval_dataset=validation,
)
if args.alone:
    last = get_last_checkpoint("output") if Path("output").exists() else None
    trainer.train(resume_from_checkpoint=last)
else:
    train(trainer)
