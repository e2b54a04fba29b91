"""Define the sections of the experiment file."""

from __future__ import annotations

import dataclasses
import random
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Tag, WrapValidator

from detcore.config._fields import (
    BY_KIND,
    MAPPING,
    TEXT,
    ForClusters,
    FromEarlier,
    Lenient,
    Name,
    Section,
    Tagged,
    TrainingLength,
    only,
    setting,
)
from detcore.config._problem import describe_value, problem
from detcore.contract.values import RETENTION_DEFAULTS, GradientSettings, TrialSettings

_DEFAULTS = TrialSettings()
_GRADIENTS = _DEFAULTS.gradients


class SearcherSection(Lenient):
    """Selection of the hyperparameters and lengths of trials."""

    name: Name = setting("Name of the search method.")
    metric: Name = setting("The validation metric that ranks trials.")
    smaller_is_better: bool = setting("Whether lower values of it are better.", True)
    max_length: TrainingLength | None = None
    source_trial_id: int | None = setting(
        "Start from the latest checkpoint of this trial.", None, ge=1
    )
    source_checkpoint_uuid: str | None = setting("Start from this checkpoint.", None, min_length=1)


SEARCHER = Tagged(tag="name", what="searcher", model=SearcherSection)
SearcherField = Annotated[SearcherSection, WrapValidator(SEARCHER.check_section)]


class StorageSection(Lenient):
    """Location of checkpoints."""

    type: Name = setting("Name of the storage type.")
    save_experiment_best: int = setting(
        "Keep this many best checkpoints of the whole experiment.",
        RETENTION_DEFAULTS["save_experiment_best"],
        ge=0,
    )
    save_trial_best: int = setting(
        "Keep this many best checkpoints of each trial.",
        RETENTION_DEFAULTS["save_trial_best"],
        ge=0,
    )
    save_trial_latest: int = setting(
        "Keep this many latest checkpoints of each trial.",
        RETENTION_DEFAULTS["save_trial_latest"],
        ge=0,
    )


STORAGE = Tagged(tag="type", what="storage type", model=StorageSection)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://.|/", re.IGNORECASE)


def _url(value: str) -> str:
    if not _SCHEME.match(value):
        raise problem(
            f"expected an absolute path or a URL, got {describe_value(value)}",
            help=("write '/folder', 's3://bucket/prefix', or a mapping with 'type'",),
        )
    return value


StorageField = Annotated[
    Annotated[str, AfterValidator(_url), Tag(TEXT)]
    | Annotated[StorageSection, WrapValidator(STORAGE.check_section), Tag(MAPPING)],
    BY_KIND,
    only(TEXT, MAPPING),
]


class LauncherSection(Lenient):
    """Launcher of the workers of trials."""

    name: Name = setting("Name of the launcher.")


LAUNCHER = Tagged(tag="name", what="launcher", model=LauncherSection)
LauncherField = Annotated[
    Annotated[Name, AfterValidator(LAUNCHER.check_name), Tag(TEXT)]
    | Annotated[LauncherSection, WrapValidator(LAUNCHER.check_section), Tag(MAPPING)],
    BY_KIND,
    only(TEXT, MAPPING),
]
# The sections whose fields the plugins describe that they name.
TAGGED = {"searcher": SEARCHER, "checkpoint_storage": STORAGE, "launcher": LAUNCHER}


class Reproducibility(Section):
    """Settings for repeatable runs."""

    experiment_seed: int = setting(
        "Seed of everything random; default: drawn for each experiment.",
        default_factory=lambda: random.SystemRandom().randrange(2**31),
        ge=0,
        le=2**31 - 1,
    )
    deterministic_ops: bool | None = setting(
        "Make the framework use only operations that give the same bits each time; "
        "null = the framework's own choice.",
        None,
    )
    step_digests: int = setting(
        "Record digests of every k-th step, by which detcore diverge compares runs; 0 = of none.",
        _DEFAULTS.step_digests,
        ge=0,
    )


class Optimizations(Section):
    """Exchange of gradients and metrics between the workers of a trial."""

    aggregation_frequency: int = setting(
        "Batches whose gradients are summed before each update.",
        _GRADIENTS.aggregation_frequency,
        ge=1,
    )
    average_aggregated_gradients: bool = setting(
        "Divide the added gradients by aggregation_frequency.",
        _GRADIENTS.average_aggregated_gradients,
    )
    average_training_metrics: bool = setting(
        "Average training metrics over all workers.", _GRADIENTS.average_training_metrics
    )
    gradient_compression: bool = setting(
        "Send gradients as half-precision numbers.", _GRADIENTS.gradient_compression
    )
    mixed_precision: Literal["O0", "O1", "O2", "O3"] = setting(
        "Level of mixed precision for apex; has no effect.", "O0"
    )
    grad_updates_size_file: str | None = setting(
        "Write the sizes of gradient updates to this file.", None
    )
    auto_tune_tensor_fusion: bool = setting("Let Horovod find the next two settings.", False)
    tensor_fusion_threshold: int | None = setting(
        "Megabytes of gradients that Horovod sends together; null = as it thinks best.", None, ge=0
    )
    tensor_fusion_cycle_time: int | None = setting(
        "Milliseconds between two looks of Horovod; null = as it thinks best.", None, ge=0
    )

    def gradient_settings(self) -> GradientSettings:
        """Return the settings that workers and plugins read."""
        names = {field.name for field in dataclasses.fields(GradientSettings)}
        return GradientSettings(**self.model_dump(include=names))


class Profiling(Section):
    """Selection of batches to profile."""

    enabled: bool = setting("Whether to profile.", False)
    begin_on_batch: int = setting("First batch to profile.", 0, ge=0)
    end_after_batch: int | None = setting("Last batch to profile; null = to the end.", None, ge=0)
    sync_timings: bool = setting("Wait for the device at each measurement.", True)


class Resources(Section):
    """Resources of a trial."""

    slots_per_trial: int = setting(
        "Worker processes (and devices) per trial; 0 = one, on the CPU.",
        _DEFAULTS.slots_per_trial,
        ge=0,
        le=65_536,
    )
    max_slots: int | None = setting("Slots for all trials together.", None, ge=0)
    weight: ForClusters = None
    priority: ForClusters = None
    resource_pool: ForClusters = None
    shm_size: ForClusters = None
    devices: ForClusters = None
    native_parallel: FromEarlier = None
    agent_label: FromEarlier = None
