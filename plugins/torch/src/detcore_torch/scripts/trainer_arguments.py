"""Check the arguments of a `Trainer`, and set them from hyperparameters."""

from __future__ import annotations

import dataclasses
import difflib
import enum
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from transformers import Trainer

from detcore.errors import InvalidExperimentError

if TYPE_CHECKING:
    from transformers import TrainingArguments


# Fields that a trainer reads when it trains, so they can be set after its creation. All other
# fields are read before, by `TrainingArguments.__post_init__` or `Trainer.__init__`.
APPLIED_FIELDS = frozenset({
    "adam_beta1", "adam_beta2", "adam_epsilon", "average_tokens_across_devices", "data_seed",
    "dataloader_drop_last", "dataloader_num_workers", "dataloader_persistent_workers",
    "eval_accumulation_steps", "gradient_accumulation_steps", "learning_rate",
    "logging_nan_inf_filter", "lr_scheduler_kwargs", "lr_scheduler_type", "max_grad_norm", "optim",
    "optim_args", "per_device_eval_batch_size", "per_device_train_batch_size",
    "torch_empty_cache_steps", "train_sampling_strategy", "warmup_steps", "weight_decay",
})  # fmt: skip
# Fields that a setting of the experiment file replaces, with that setting.
SCHEDULED_FIELDS = {
    "eval_on_start": "perform_initial_validation",
    "eval_steps": "min_validation_period",
    "eval_strategy": "min_validation_period",
    "logging_steps": "scheduling_unit",
    "logging_strategy": "scheduling_unit",
    "max_steps": "searcher.max_length",
    "num_train_epochs": "searcher.max_length",
    "save_steps": "min_checkpoint_period",
    "save_strategy": "min_checkpoint_period",
}
# Fields that affect the result of training, besides its length. Other fields may change between two
# starts of a script: files and services, devices, and values that detcore records elsewhere
# (`seed`, `metric_for_best_model`, periods).
RESULT_FIELDS = frozenset({
    "accelerator_config", "adam_beta1", "adam_beta2", "adam_epsilon",
    "average_tokens_across_devices", "bf16", "data_seed", "dataloader_drop_last", "fp16",
    "gradient_accumulation_steps", "label_smoothing_factor", "learning_rate",
    "length_column_name", "load_best_model_at_end", "lr_scheduler_kwargs", "lr_scheduler_type",
    "max_grad_norm", "neftune_noise_alpha", "optim", "optim_args", "optim_target_modules",
    "per_device_train_batch_size", "tf32", "train_sampling_strategy", "warmup_steps",
    "weight_decay",
})  # fmt: skip
# Fields of transformers 4, and the fields that replaced them.
RENAMED_FIELDS = {
    "adafactor": "optim",
    "evaluation_strategy": "eval_strategy",
    "group_by_length": "train_sampling_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "warmup_ratio": "warmup_steps",
}
_MIN_SIMILARITY = 0.85  # "learning_rte" is a typo, "head_learning_rate" is a name of the script
# Schedules that use a metric, which `TrainingArguments.__post_init__` chooses.
_METRIC_SCHEDULES = ("reduce_lr_on_plateau", "greedy")


def apply_hyperparameters(
    trainer: Trainer, hparams: Mapping[str, object], *, script_hparams: Collection[str] = ()
) -> None:
    """Set the training arguments that are named like hyperparameters of the trial.

    Args:
        trainer: The trainer.
        hparams: The hyperparameters.
        script_hparams: Names of hyperparameters that the script itself reads. They may resemble
            arguments.

    Raises:
        InvalidExperimentError: If the trainer has already read the argument with another value, or
            if a name is close to that of an argument, or is an argument of an earlier version.
    """
    args = trainer.args
    names = {field.name for field in dataclasses.fields(args)}
    for name, value in hparams.items():
        if name not in names:
            if name not in script_hparams:
                _check_unknown(name, names)
            continue
        if _is_equal(getattr(args, name), value):
            continue
        if name in SCHEDULED_FIELDS:
            raise InvalidExperimentError(
                f"the hyperparameter {name!r} is {value!r}, and TrainingArguments has "
                f"{getattr(args, name)!r}.\n"
                "In a trial, the experiment file determines this value.\n"
                f"Set {SCHEDULED_FIELDS[name]} in the experiment file."
            )
        if not _is_applicable(args, name, value):
            raise InvalidExperimentError(
                f"the hyperparameter {name!r} is {value!r}, and TrainingArguments has "
                f"{getattr(args, name)!r}.\n"
                "The trainer has already read this argument, so setting it now has no effect.\n"
                "Write in the script:  "
                f'TrainingArguments(..., {name}=hyperparameters({name}=...)["{name}"])'
            )
        kind = type(getattr(args, name))
        setattr(args, name, kind(value) if issubclass(kind, enum.Enum) else value)
    trainer._train_batch_size = args.train_batch_size  # the trainer's copy


def _check_unknown(name: str, names: Collection[str]) -> None:
    """Check that an unknown hyperparameter is not a misspelled training argument."""
    matches = difflib.get_close_matches(name, sorted(names), n=1, cutoff=_MIN_SIMILARITY)
    intended_name = RENAMED_FIELDS.get(name) or (matches[0] if matches else None)
    if intended_name is not None:
        raise InvalidExperimentError(
            f"TrainingArguments has no field {name!r}, so this hyperparameter has no effect on the "
            f"trainer. Did you mean {intended_name!r}?\n"
            "Rename it in the experiment file. If the script itself reads it, name it there:  "
            f"hyperparameters({name}=...)"
        )


def list_result_arguments(args: TrainingArguments) -> dict[str, object]:
    """Return the arguments on which the result of training depends, enums as their values."""
    return {name: value for name, value in args.to_dict().items() if name in RESULT_FIELDS}


def _is_equal(current: Any, value: Any) -> bool:
    """Whether an argument equals a value, after the conversions of ``__post_init__``."""
    if isinstance(current, list) and not isinstance(value, list):
        return bool(current == ([] if value == "none" else [value]))  # report_to
    return bool(current == value)


def _is_applicable(args: TrainingArguments, name: str, value: object) -> bool:
    if name == "lr_scheduler_type" and value in _METRIC_SCHEDULES:
        return args.metric_for_best_model is not None
    return name in APPLIED_FIELDS


def check_arguments(trainer: Trainer) -> None:
    """Check that training with these arguments can be resumed.

    Raises:
        InvalidExperimentError: The message names the argument.
    """
    args = trainer.args
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise InvalidExperimentError(
            "the trainer shards the model with DeepSpeed or FSDP, which this adapter cannot save.\n"
            "Train on one device or with DistributedDataParallel."
        )
    if args.ignore_data_skip:
        raise InvalidExperimentError(
            "TrainingArguments has ignore_data_skip=True: a resumed run would repeat the first "
            "batches of the epoch.\nRemove the argument."
        )
    if args.auto_find_batch_size:
        raise InvalidExperimentError(
            "TrainingArguments has auto_find_batch_size=True, so the steps of an epoch are not "
            "known before training.\nSet per_device_train_batch_size instead."
        )
    overrides_evaluation = any(
        getattr(type(trainer), name) is not getattr(Trainer, name)
        for name in ("get_eval_dataloader", "evaluate")
    )
    if trainer.eval_dataset is None and not overrides_evaluation:
        raise InvalidExperimentError(
            "the trainer has no eval_dataset, but training ends with a validation, whose metric "
            "selects the best checkpoint.\nPass an eval_dataset to Trainer."
        )
