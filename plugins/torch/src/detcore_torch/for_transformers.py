"""Train with the `Trainer` of Hugging Face transformers, with detcore's checkpoints and searches.

```python
from detcore_torch.for_transformers import train

trainer = Trainer(model=model, args=args, train_dataset=..., eval_dataset=...)
train(trainer)  # instead of trainer.train()
```
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from detcore.errors import InvalidExperimentError
from detcore_torch.libraries import import_supported
from detcore_torch.scripts.script_run import (
    Plan,
    Reaction,
    ScriptRun,
    count_steps_per_epoch,
    hyperparameters,
    list_script_hparams,
    open_run,
)
from detcore_torch.state.random_generators import preserved_generators

import_supported("transformers", (5, 20), (6,), "transformers")

from transformers import Trainer  # noqa: E402  # after the check
from transformers.trainer_utils import IntervalStrategy, TrainOutput  # noqa: E402

from detcore_torch.scripts.trainer_arguments import (  # noqa: E402
    apply_hyperparameters,
    check_arguments,
    list_result_arguments,
)
from detcore_torch.scripts.trainer_clock import FRAMEWORK, ClockCallback, TrainingEndedError  # noqa: E402
from detcore_torch.scripts.trainer_data import (  # noqa: E402
    EpochData,
    check_training_loader,
    exact_prediction_step,
)
from detcore_torch.scripts.trainer_state import BestModel, CallbackStates  # noqa: E402

if TYPE_CHECKING:
    from transformers import TrainingArguments

__all__ = ["hyperparameters", "train"]


def train(
    trainer: Trainer,
    *,
    hparams: Mapping[str, object] | None = None,
    metric: str | None = None,
    smaller_is_better: bool | None = None,
    checkpoint_storage: str | None = None,
    inexact_resume: Reaction = "warn",
) -> TrainOutput:
    """Train as ``trainer.train()`` does, under detcore.

    Under ``detcore run``, the experiment file determines how long to train and when to report,
    validate and save, in steps (optimizer updates). Hyperparameters named like fields of
    ``TrainingArguments`` replace them. A standalone script follows these, and resumes if restarted.

    Args:
        trainer: The ``Trainer``.
        hparams: Hyperparameters to record for a standalone script.
        metric: Validation metric that selects the best checkpoint of a standalone script;
            default: ``metric_for_best_model`` of the ``TrainingArguments``, or ``eval_loss``.
        smaller_is_better: Default: as for ``metric_for_best_model``, or true.
        checkpoint_storage: Path or URL for a standalone script; default: ``DETCORE_HOME``.
        inexact_resume: ``reproducibility.inexact_resume`` of a standalone script.

    Returns:
        The ``TrainOutput`` of the trainer, with the metrics since the last start.

    Raises:
        SystemExit: With code 75, if the trial was preempted and has saved a checkpoint.
        InvalidExperimentError: If the trainer is configured in a way that cannot be resumed, has
            no data to validate on, ends training before the experiment's length, or has read an
            argument that a hyperparameter of the trial is to replace; or if the name of a
            hyperparameter is close to that of an argument, or is an argument of transformers 4.
        InvalidDataTypeError: If ``get_train_dataloader`` does not return a PyTorch loader.
        RunError: If a standalone script would resume a run that started with other arguments.
        DataError: If a loader's batches come in the order in which its processes finish.
        InvalidCheckpointError: If the checkpoint does not fit the model.
    """
    apply_hyperparameters(trainer, hyperparameters(), script_hparams=list_script_hparams())
    check_arguments(trainer)
    with preserved_generators():
        loader = trainer.get_train_dataloader()
    check_training_loader(trainer, loader)
    steps_per_epoch = count_steps_per_epoch(loader, trainer.args.gradient_accumulation_steps)
    plan = _make_plan(
        trainer.args,
        steps_per_epoch,
        metric=metric,
        smaller_is_better=smaller_is_better,
        hparams=hparams,
        storage=checkpoint_storage,
        inexact_resume=inexact_resume,
    )
    with open_run(
        plan,
        framework=FRAMEWORK,
        steps_per_epoch=steps_per_epoch,
        world_size=("args.world_size of the trainer", trainer.args.world_size),
    ) as run:
        return _run_training(trainer, run, plan)


def _run_training(trainer: Trainer, run: ScriptRun, plan: Plan) -> TrainOutput:
    if run.length is not None:
        trainer.args.max_steps = run.length
    data = EpochData(trainer, run)
    callback = ClockCallback(
        trainer,
        run,
        data,
        callbacks=CallbackStates(trainer),
        best=BestModel(trainer, save_every=0 if run.is_managed else plan.save_every),
    )
    trainer.add_callback(callback)
    replaced = {
        "get_train_dataloader": data.make_loader,
        # Called when the trainer would write its files, several of which are pickles.
        "_save_checkpoint": callback.save_if_requested,
        # Called when the trainer would read its files.
        "_load_best_model": callback.load_best,
        "_determine_best_metric": callback.finish_validation,
        "training_step": callback.train_step,
        "prediction_step": exact_prediction_step(trainer),
    }
    vars(trainer).update(replaced)
    folder = None if run.checkpoint is None else str(run.checkpoint)
    try:
        output = trainer.train(resume_from_checkpoint=folder)
    except TrainingEndedError:
        output = trainer._finalize_training(None, 0, time.time())._replace(training_loss=math.nan)
    finally:
        for name in replaced:
            del vars(trainer)[name]
        trainer.remove_callback(callback)
    callback.end_early()
    return output


def _make_plan(
    args: TrainingArguments,
    steps_per_epoch: int | None,
    *,
    metric: str | None,
    smaller_is_better: bool | None,
    hparams: Mapping[str, object] | None,
    storage: str | None,
    inexact_resume: Reaction,
) -> Plan:
    """Return the plan of a standalone script, from its training arguments."""
    length = args.max_steps
    if length <= 0:
        if steps_per_epoch is None:
            raise InvalidExperimentError(
                "the training data has no length, and TrainingArguments has no max_steps.\n"
                "Set max_steps."
            )
        length = math.ceil(args.num_train_epochs * steps_per_epoch)

    def find_period(strategy: IntervalStrategy, steps: float | None) -> int:
        if strategy == IntervalStrategy.EPOCH:
            return steps_per_epoch or 0
        if strategy != IntervalStrategy.STEPS or not steps:
            return 0
        return math.ceil(steps * length) if steps < 1 else int(steps)

    best = args.metric_for_best_model or "loss"
    best = best if best.startswith("eval_") else f"eval_{best}"
    if smaller_is_better is None:
        smaller_is_better = not (args.greater_is_better and metric in (None, best))
    return Plan(
        metric=metric or best,
        smaller_is_better=smaller_is_better,
        length=length,
        report_every=find_period(args.logging_strategy, args.logging_steps) or length,
        validate_every=find_period(args.eval_strategy, args.eval_steps),
        save_every=find_period(args.save_strategy, args.save_steps),
        seed=args.seed,
        hparams=hparams,
        arguments=list_result_arguments(args),
        storage=storage,
        inexact_resume=inexact_resume,
    )
