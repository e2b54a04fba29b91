"""Models of the experiment file and its sections."""

from __future__ import annotations

import dataclasses
import random
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    JsonValue,
    Tag,
    ValidationInfo,
    WrapValidator,
    model_validator,
)

from detcore.config.field_types import (
    BY_KIND,
    MAPPING,
    NO_EFFECT,
    TEXT,
    Command,
    ForClusters,
    FromEarlier,
    Lenient,
    Name,
    Period,
    Section,
    Tagged,
    TrainingLength,
    accept_kinds,
    setting,
)
from detcore.config.hyperparameters import Hyperparameters
from detcore.config.problems import describe_value, make_problem, raise_problems
from detcore.config.rules import Facts, find_broken_rules
from detcore.contract.values import (
    RETENTION_DEFAULTS,
    GradientSettings,
    Length,
    TrialSettings,
    Unit,
)

RULES_LATER = "rules_later"  # validation context: the caller checks rules between fields
_NEVER = Length(0, Unit.BATCHES)
_NEVER_IN_SCHEMA: dict[str, JsonValue] = {"default": {"batches": 0}}
_SEEDS = 2**31
_DEFAULTS = TrialSettings()
_GRADIENTS = _DEFAULTS.gradients


class SearcherSection(Lenient):
    """Search method that selects the hyperparameters and lengths of trials."""

    name: Name = setting("Name of the search method.")
    metric: Name = setting("Validation metric that ranks trials.")
    smaller_is_better: bool = setting("Whether smaller values of the metric are better.", True)
    max_length: TrainingLength | None = None
    source_trial_id: int | None = setting(
        "Trial whose latest checkpoint provides the initial weights; null = none.", None, ge=1
    )
    source_checkpoint_uuid: str | None = setting(
        "Checkpoint that provides the initial weights; null = none.", None, min_length=1
    )


SEARCHER = Tagged(tag="name", what="searcher", model=SearcherSection)
SearcherField = Annotated[SearcherSection, WrapValidator(SEARCHER.check_section)]


class StorageSection(Lenient):
    """Storage location of checkpoints."""

    type: Name = setting("Name of the storage type.")
    save_experiment_best: int = setting(
        "Number of best checkpoints to keep for the whole experiment.",
        RETENTION_DEFAULTS["save_experiment_best"],
        ge=0,
    )
    save_trial_best: int = setting(
        "Number of best checkpoints to keep for each trial.",
        RETENTION_DEFAULTS["save_trial_best"],
        ge=0,
    )
    save_trial_latest: int = setting(
        "Number of latest checkpoints to keep for each trial.",
        RETENTION_DEFAULTS["save_trial_latest"],
        ge=0,
    )


STORAGE = Tagged(tag="type", what="storage type", model=StorageSection)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://.|/", re.IGNORECASE)


def _check_url(value: str) -> str:
    if not _SCHEME.match(value):
        raise make_problem(
            f"expected an absolute path or a URL, got {describe_value(value)}",
            help=("write '/directory', 's3://bucket/prefix', or a mapping with 'type'",),
        )
    return value


StorageField = Annotated[
    Annotated[str, AfterValidator(_check_url), Tag(TEXT)]
    | Annotated[StorageSection, WrapValidator(STORAGE.check_section), Tag(MAPPING)],
    BY_KIND,
    accept_kinds(TEXT, MAPPING),
]


class LauncherSection(Lenient):
    """Launcher that starts the workers of trials."""

    name: Name = setting("Name of the launcher.")


LAUNCHER = Tagged(tag="name", what="launcher", model=LauncherSection)
LauncherField = Annotated[
    Annotated[Name, AfterValidator(LAUNCHER.check_name), Tag(TEXT)]
    | Annotated[LauncherSection, WrapValidator(LAUNCHER.check_section), Tag(MAPPING)],
    BY_KIND,
    accept_kinds(TEXT, MAPPING),
]
# Sections that name a plugin, which defines their other fields.
TAGGED = {"searcher": SEARCHER, "checkpoint_storage": STORAGE, "launcher": LAUNCHER}


class Reproducibility(Section):
    """Settings for repeatable runs."""

    experiment_seed: int = setting(
        "Seed of all random numbers; default: drawn for each experiment.",
        default_factory=lambda: random.SystemRandom().randrange(2**31),
        ge=0,
        le=2**31 - 1,
    )
    deterministic_ops: bool | None = setting(
        "Whether to use only deterministic (bit-reproducible) operations; "
        "null = framework default.",
        None,
    )
    step_digests: int = setting(
        "Interval in steps between recorded digests, which 'detcore diverge' compares; 0 = off.",
        _DEFAULTS.step_digests,
        ge=0,
    )
    inexact_resume: Literal["warn", "fail", "ignore"] = setting(
        "What to do if a resumed trial differs from the steps that it trained before.",
        _DEFAULTS.inexact_resume,
    )


class Optimizations(Section):
    """Exchange of gradients and metrics between the workers of a trial."""

    aggregation_frequency: int = setting(
        "Number of batches whose gradients are summed before each update.",
        _GRADIENTS.aggregation_frequency,
        ge=1,
    )
    average_aggregated_gradients: bool = setting(
        "Whether to divide the summed gradients by aggregation_frequency.",
        _GRADIENTS.average_aggregated_gradients,
    )
    average_training_metrics: bool = setting(
        "Whether to average training metrics over all workers.",
        _GRADIENTS.average_training_metrics,
    )
    gradient_compression: bool = setting(
        "Whether to send gradients in half precision.", _GRADIENTS.gradient_compression
    )
    mixed_precision: Literal["O0", "O1", "O2", "O3"] = setting(
        f"For apex: {NO_EFFECT}; use torch.autocast in a PyTorchTrial, or a mixed-precision "
        "policy in a Keras model.",
        "O0",
    )
    grad_updates_size_file: str | None = setting(
        "File that receives the sizes of gradient updates; null = none.", None
    )
    auto_tune_tensor_fusion: bool = setting(
        "Whether Horovod tunes the fusion threshold and the cycle time.", False
    )
    tensor_fusion_threshold: int | None = setting(
        "Horovod fusion threshold in MB; null = Horovod's default.", None, ge=0
    )
    tensor_fusion_cycle_time: int | None = setting(
        "Horovod cycle time in milliseconds; null = Horovod's default.", None, ge=0
    )

    def gradient_settings(self) -> GradientSettings:
        """Return the settings that workers and plugins read."""
        names = {field.name for field in dataclasses.fields(GradientSettings)}
        return GradientSettings(**self.model_dump(include=names))


class Profiling(Section):
    """Batches to profile."""

    enabled: bool = setting("Whether to profile training.", False)
    begin_on_batch: int = setting("First batch to profile.", 0, ge=0)
    end_after_batch: int | None = setting(
        "Last batch to profile; null = last batch of the trial.", None, ge=0
    )
    sync_timings: bool = setting(
        "Whether each measurement waits until the device has finished.", True
    )


class Resources(Section):
    """Resources of a trial."""

    slots_per_trial: int = setting(
        "Number of worker processes (and devices) per trial; 0 = one worker on the CPU.",
        _DEFAULTS.slots_per_trial,
        ge=0,
        le=65_536,
    )
    max_slots: int | None = setting(
        "Maximum number of slots that concurrent trials use; null = the accelerators of this "
        "machine, or one trial at a time.",
        None,
        ge=0,
    )
    weight: ForClusters = None
    priority: ForClusters = None
    resource_pool: ForClusters = None
    shm_size: ForClusters = None
    devices: ForClusters = None
    native_parallel: FromEarlier = None
    agent_label: FromEarlier = None


def _draw_name() -> str:
    generator = random.SystemRandom()  # does not change the generator of user code
    words = f"{generator.choice(_ADJECTIVES)}-{generator.choice(_NOUNS)}"
    return f"{words}-{generator.randrange(1000):03d}"


_ADJECTIVES = ("amber", "bold", "brisk", "calm", "clear", "deep", "fair", "golden", "keen", "quiet")
_NOUNS = ("birch", "brook", "crane", "dune", "falcon", "glade", "heron", "linden", "otter", "reef")


class ExperimentConfig(Section):
    """Model of an experiment file.

    Unknown names, wrong types and broken rules between fields raise `pydantic.ValidationError`.
    `load_config` reports the same mistakes with positions and suggestions. The result of
    ``model_dump(mode="json")`` is plain JSON that ``model_validate`` reads as an equal
    configuration.
    """

    name: Name = setting(
        "Name of the experiment; default: random words.", default_factory=_draw_name
    )
    description: str | None = setting("Purpose of the experiment.", None)
    labels: list[str] = setting("Labels for finding the experiment.", [])
    project: str | None = setting("Name of a project (free text).", None)
    workspace: str | None = setting("Name of a workspace (free text).", None)
    entrypoint: Command | None = setting(
        "Code to run: 'module:TrialClass', a shell command, or a list of arguments.", None
    )
    data: dict[str, Any] = setting("Free-form settings of your code, usually for its data.", {})
    data_ledger: bool = setting(
        "Whether to log the records of each batch, for 'detcore data verify'.",
        _DEFAULTS.data_ledger,
    )
    debug: bool = setting("Whether to print debug output.", False)
    hyperparameters: Hyperparameters = setting(
        "Hyperparameters: constants, groups, and ranges to search.", {}
    )
    searcher: SearcherField = setting("Search method with its metric and length.")
    records_per_epoch: int = setting(
        "Number of records in one epoch; 0 = size of the training data.",
        _DEFAULTS.records_per_epoch,
        ge=0,
    )
    scheduling_unit: int = setting(
        "Number of batches between two reports of training metrics.",
        _DEFAULTS.scheduling_unit,
        ge=1,
    )
    min_validation_period: Period = setting(
        "Maximum length between two validations; 0 = validate only at the end.",
        _DEFAULTS.min_validation_period,
        json_schema_extra=_NEVER_IN_SCHEMA,
    )
    min_checkpoint_period: Period = setting(
        "Maximum length between two checkpoints; 0 = only checkpoint_policy applies.",
        _DEFAULTS.min_checkpoint_period,
        json_schema_extra=_NEVER_IN_SCHEMA,
    )
    perform_initial_validation: bool = setting(
        "Whether to validate once before training.", _DEFAULTS.perform_initial_validation
    )
    checkpoint_policy: Literal["best", "all", "none"] = setting(
        "Validations after which a checkpoint is saved.", _DEFAULTS.checkpoint_policy
    )
    checkpoint_storage: StorageField | None = setting(
        "Storage of checkpoints: a path, a URL, or a type with its settings.", None
    )
    checkpoint_async: bool = setting(
        "Whether training continues while a checkpoint is written and uploaded.",
        _DEFAULTS.checkpoint_async,
    )
    checkpoint_exit_timeout_s: float = setting(
        "Maximum time in seconds that a trial waits for its last checkpoint when it ends.",
        _DEFAULTS.checkpoint_exit_timeout_s,
        ge=0,
    )
    preemption_grace_s: float | None = setting(
        "Time in seconds between SIGTERM and SIGKILL; null = DETCORE_GRACE_S, or the grace period "
        "of Slurm or Kubernetes.",
        None,
        gt=0,
    )
    max_restarts: int = setting(
        "Maximum number of restarts of a failed trial from its last checkpoint.", 5, ge=0
    )
    stop_at_nan: bool = setting(
        "Whether a NaN metric ends a trial with an error before the next checkpoint.",
        _DEFAULTS.stop_at_nan,
    )
    hang_timeout_s: float | None = setting(
        "Time in seconds without a report after which a trial ends with an error and its stack "
        "traces in the log; null = no limit.",
        None,
        gt=0,
    )
    reproducibility: Reproducibility = setting(
        "Settings for repeatable runs.", default_factory=lambda: Reproducibility()
    )
    optimizations: Optimizations = setting(
        "Exchange of gradients and metrics between workers.", Optimizations()
    )
    profiling: Profiling = setting("Batches to profile.", Profiling())
    resources: Resources = setting("Resources of a trial.", Resources())
    launcher: LauncherField = setting(
        "Launcher of the workers: a name, or a mapping with 'name' and settings.",
        "local",
    )
    environment: Any = setting(
        f"For a cluster: {NO_EFFECT}; the trial uses the Python environment and the environment "
        "variables of the shell that starts detcore.",
        None,
    )
    bind_mounts: ForClusters = None
    security: ForClusters = None
    slurm: ForClusters = None
    pbs: ForClusters = None
    data_layer: FromEarlier = None
    internal: FromEarlier = None
    tensorboard_storage: FromEarlier = None
    agent_label: FromEarlier = None

    def trial_settings(self) -> TrialSettings:
        """Return the settings for a trial's launcher, workers and plugins."""
        names = {field.name for field in dataclasses.fields(TrialSettings)}
        sections: tuple[Section, ...] = (self, self.searcher, self.reproducibility, self.resources)
        storage, length = self.checkpoint_storage, self.searcher.max_length
        unit = getattr(self.searcher, "unit", None) if length is None else length.unit
        values = {
            name: getattr(section, name)
            for section in sections
            for name in names & type(section).model_fields.keys()
        }
        values["entrypoint"] = self.entrypoint or ""
        values["metric"] = self.searcher.metric or None
        values["checkpoint_storage"] = (
            storage.model_dump(mode="json") if isinstance(storage, Section) else storage
        )
        return TrialSettings(
            **values,
            length_unit=Unit(unit or Unit.EPOCHS),
            gradients=self.optimizations.gradient_settings(),
        )

    @model_validator(mode="after")
    def _check_rules(self, info: ValidationInfo) -> ExperimentConfig:
        if not (info.context or {}).get(RULES_LATER):
            raise_problems(
                "ExperimentConfig", find_broken_rules(Facts(self.model_dump(mode="json")))
            )
        return self


def smoke_config(config: ExperimentConfig) -> ExperimentConfig:
    """Return a configuration reduced to one batch, one validation and one checkpoint."""
    common = {name: getattr(config.searcher, name) for name in SearcherSection.model_fields}
    length = Length(1, Unit.BATCHES)
    smoke = {
        "searcher": SearcherSection(**{**common, "name": "single", "max_length": length}),
        "scheduling_unit": 1,
        "min_validation_period": _NEVER,
        "min_checkpoint_period": _NEVER,
        "checkpoint_policy": "none",
        "perform_initial_validation": False,
        "max_restarts": 0,
    }
    return config.model_copy(update=smoke)


def trial_seed(experiment_seed: int) -> int:
    """Return the seed of an experiment's only or first trial, ``0 <= seed < 2**31``.

    Args:
        experiment_seed: ``reproducibility.experiment_seed``.
    """
    from numpy.random import RandomState

    return int(RandomState(experiment_seed).randint(0, _SEEDS, dtype="int64"))
