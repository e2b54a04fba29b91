"""Hyperparameters named like `TrainingArguments` are applied later, or rejected."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from detcore.errors import InvalidExperimentError

pytestmark = [pytest.mark.xdist_group("libraries"), pytest.mark.filterwarnings("ignore")]

SAMPLES: dict[str, Any] = {
    "adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-7,
    "average_tokens_across_devices": False, "data_seed": 3, "dataloader_drop_last": True,
    "dataloader_num_workers": 2, "dataloader_persistent_workers": True,
    "eval_accumulation_steps": 2, "gradient_accumulation_steps": 2, "learning_rate": 0.5,
    "logging_nan_inf_filter": False, "lr_scheduler_kwargs": {"num_cycles": 2},
    "lr_scheduler_type": "cosine", "max_grad_norm": 0.5, "optim": "sgd", "optim_args": "a=1",
    "per_device_eval_batch_size": 3, "per_device_train_batch_size": 3,
    "torch_empty_cache_steps": 5, "train_sampling_strategy": "sequential", "warmup_steps": 3,
    "weight_decay": 0.5,
}  # fmt: skip
# Fields that the library reads before training, fields for files and services, and fields for tasks
# of detcore. A trial that changes such a field passes it to TrainingArguments.
FIXED_FIELDS = {
    "accelerator_config", "activation_checkpointing", "activation_checkpointing_kwargs",
    "auto_find_batch_size", "batch_eval_metrics", "bf16", "bf16_full_eval", "dataloader_in_order",
    "dataloader_multiprocessing_context", "dataloader_pin_memory", "dataloader_prefetch_factor",
    "ddp_backend", "ddp_broadcast_buffers", "ddp_bucket_cap_mb", "ddp_find_unused_parameters",
    "ddp_static_graph", "ddp_timeout", "debug", "deepspeed", "disable_tqdm", "do_eval",
    "do_predict", "do_train", "enable_jit_checkpoint", "eval_delay", "eval_do_concat_batches",
    "eval_use_gather_object", "fp16", "fp16_full_eval", "fsdp", "fsdp_config", "full_determinism",
    "gradient_checkpointing", "gradient_checkpointing_kwargs", "greater_is_better",
    "hub_always_push", "hub_model_id", "hub_private_repo", "hub_revision", "hub_strategy",
    "hub_token", "ignore_data_skip", "include_for_metrics", "include_num_input_tokens_seen",
    "label_names", "label_smoothing_factor", "length_column_name", "liger_kernel_config",
    "load_best_model_at_end", "local_rank", "log_level", "log_level_replica", "log_on_each_node",
    "logging_first_step", "metric_for_best_model", "neftune_noise_alpha", "optim_target_modules",
    "output_dir", "parallelism_config", "prediction_loss_only", "project", "push_to_hub",
    "remove_unused_columns", "report_to", "restore_callback_states_from_checkpoint",
    "resume_from_checkpoint", "run_name", "save_on_each_node", "save_only_model",
    "save_total_limit", "seed", "skip_memory_metrics", "tf32", "torch_compile",
    "torch_compile_backend", "torch_compile_mode", "trackio_bucket_id", "trackio_space_id",
    "trackio_static_space_id", "use_cache", "use_cpu", "use_liger_kernel",
}  # fmt: skip
# Read by Trainer.__init__, and once more when training starts.
READ_AGAIN = {"data_seed", "per_device_train_batch_size"}


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)


def make_trainer(folder: Path, **settings: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    args = TrainingArguments(str(folder), **{"report_to": "none", "use_cpu": True, **settings})
    return Trainer(Network(), args, train_dataset=[{}], eval_dataset=[{}])


def test_every_argument_is_classified() -> None:
    """This fails for a version of transformers with a new argument, which must be classified."""
    from transformers import TrainingArguments

    import detcore_torch.for_transformers  # noqa: F401  # checks the version
    from detcore_torch.scripts.trainer_arguments import (
        APPLIED_FIELDS,
        RENAMED_FIELDS,
        RESULT_FIELDS,
        SCHEDULED_FIELDS,
    )

    names = {field.name for field in dataclasses.fields(TrainingArguments)}
    assert names - FIXED_FIELDS - APPLIED_FIELDS - SCHEDULED_FIELDS.keys() == set()
    assert not FIXED_FIELDS & (APPLIED_FIELDS | SCHEDULED_FIELDS.keys())
    assert SAMPLES.keys() == APPLIED_FIELDS
    assert names >= RESULT_FIELDS
    assert names >= set(RENAMED_FIELDS.values())


def test_trainer_reads_applied_arguments_later(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    names: set[str] = set()

    class Recorded(TrainingArguments):  # type: ignore[misc]  # transformers is not typed
        def __getattribute__(self, name: str) -> Any:
            names.add(name)
            return super().__getattribute__(name)

    args = Recorded(str(tmp_path), report_to="none", use_cpu=True)
    names.clear()
    Trainer(Network(), args, train_dataset=[{}], eval_dataset=[{}])
    assert "label_smoothing_factor" in names
    assert names & SAMPLES.keys() == READ_AGAIN


@pytest.mark.parametrize("name", SAMPLES)
def test_applied_argument_equals_initial_argument(tmp_path: Path, name: str) -> None:
    from detcore_torch.scripts.trainer_arguments import apply_hyperparameters

    arguments = make_trainer(tmp_path, **{name: SAMPLES[name]})
    applied = make_trainer(tmp_path)
    apply_hyperparameters(applied, {name: SAMPLES[name], "width": 3})
    assert dataclasses.asdict(applied.args) == dataclasses.asdict(arguments.args)
    assert applied._train_batch_size == arguments._train_batch_size


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        (
            "label_smoothing_factor",
            0.1,
            "=hyperparameters(label_smoothing_factor=...)[",
        ),
        ("bf16", True, "TrainingArguments(..., bf16="),
        ("neftune_noise_alpha", 5.0, "has already read this argument"),
        ("seed", 7, "has already read this argument"),
        ("report_to", "tensorboard", "has already read this argument"),
        ("lr_scheduler_type", "reduce_lr_on_plateau", "has already read this argument"),
        ("max_steps", 100, "Set searcher.max_length in the experiment file"),
    ],
)
def test_argument_already_read_is_rejected(
    tmp_path: Path, name: str, value: object, advice: str
) -> None:
    from detcore_torch.scripts.trainer_arguments import apply_hyperparameters

    with pytest.raises(InvalidExperimentError, match=re.escape(advice)):
        apply_hyperparameters(make_trainer(tmp_path), {name: value})


def test_argument_set_by_script_is_accepted(tmp_path: Path) -> None:
    from detcore_torch.scripts.trainer_arguments import apply_hyperparameters

    values = {"bf16": True, "seed": 7, "report_to": "none", "save_strategy": "epoch"}
    trainer = make_trainer(tmp_path, **values)
    apply_hyperparameters(trainer, values)
    assert trainer.args.seed == 7


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("learning_rte", "learning_rate"),
        ("train_sample_strategy", "train_sampling_strategy"),
        ("warmup_ratio", "warmup_steps"),
        ("group_by_length", "train_sampling_strategy"),
    ],
)
def test_name_close_to_argument_is_rejected(tmp_path: Path, name: str, field: str) -> None:
    from detcore_torch.scripts.trainer_arguments import apply_hyperparameters

    trainer = make_trainer(tmp_path)
    with pytest.raises(InvalidExperimentError, match=f"{name}.* Did you mean '{field}'") as refused:
        apply_hyperparameters(trainer, {name: 1})
    assert f"hyperparameters({name}=...)" in str(refused.value)
    apply_hyperparameters(trainer, {name: 1}, script_hparams=[name])


def test_unrelated_names_are_accepted(tmp_path: Path) -> None:
    from detcore_torch.scripts.trainer_arguments import apply_hyperparameters

    names = ("width", "batch_size", "optimizer", "dataset", "head_learning_rate", "beta1")
    apply_hyperparameters(make_trainer(tmp_path), dict.fromkeys(names, 1))
