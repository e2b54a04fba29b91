"""Define the experiment file: its sections, and the file as a whole."""

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
    only,
    setting,
)
from detcore.config.hyperparameters import Hyperparameters
from detcore.config.problems import describe_value, problem, raise_problems
from detcore.config.rules import Facts, broken_rules
from detcore.contract.values import (
    RETENTION_DEFAULTS,
    GradientSettings,
    Length,
    TrialSettings,
    Unit,
)

RULES_LATER = "rules_later"  # validation context: the caller checks rules between fields itself
_NEVER = Length(0, Unit.BATCHES)
_NEVER_IN_SCHEMA: dict[str, JsonValue] = {"default": {"batches": 0}}
_SEEDS = 2**31
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
        f"For apex: {NO_EFFECT}; use torch.autocast in a PyTorchTrial, or a mixed-precision "
        "policy in a Keras model.",
        "O0",
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


def _draw_name() -> str:
    chosen = random.SystemRandom()  # does not touch the generator of user code
    return f"{chosen.choice(_ADJECTIVES)}-{chosen.choice(_NOUNS)}-{chosen.randrange(1000):03d}"


_ADJECTIVES = ("amber", "bold", "brisk", "calm", "clear", "deep", "fair", "golden", "keen", "quiet")
_NOUNS = ("birch", "brook", "crane", "dune", "falcon", "glade", "heron", "linden", "otter", "reef")


class ExperimentConfig(Section):
    """Model of an experiment file.

    Unknown names, wrong types and broken rules between fields raise `pydantic.ValidationError`;
    `load_config` reports the same with positions and suggestions. ``model_dump(mode="json")``
    returns plain JSON values from which ``model_validate`` makes an equal configuration.
    """

    name: Name = setting(
        "Name of the experiment; default: words drawn at random.", default_factory=_draw_name
    )
    description: str | None = setting("Purpose of the experiment.", None)
    labels: list[str] = setting("Words to find the experiment by.", [])
    project: str | None = setting("Project, by any name.", None)
    workspace: str | None = setting("Workspace, by any name.", None)
    entrypoint: Command | None = setting(
        "Code to run: 'module:TrialClass', a shell command, or a list of arguments.", None
    )
    data: dict[str, Any] = setting("Free-form settings of your code, usually about its data.", {})
    data_ledger: bool = setting(
        "Log which records each batch used, for 'detcore data verify'.", _DEFAULTS.data_ledger
    )
    debug: bool = setting("More log output.", False)
    hyperparameters: Hyperparameters = setting(
        "Constants, groups of them, and ranges to search.", {}
    )
    searcher: SearcherField = setting("Search method: its hyperparameters, length and metric.")
    records_per_epoch: int = setting(
        "Records in one epoch; 0 to take it from the data.", _DEFAULTS.records_per_epoch, ge=0
    )
    scheduling_unit: int = setting(
        "Batches between two reports of training metrics.", _DEFAULTS.scheduling_unit, ge=1
    )
    min_validation_period: Period = setting(
        "Validate at least this often; 0 = only at the end.",
        _DEFAULTS.min_validation_period,
        json_schema_extra=_NEVER_IN_SCHEMA,
    )
    min_checkpoint_period: Period = setting(
        "Save a checkpoint at least this often; 0 = as checkpoint_policy says.",
        _DEFAULTS.min_checkpoint_period,
        json_schema_extra=_NEVER_IN_SCHEMA,
    )
    perform_initial_validation: bool = setting(
        "Validate once before training.", _DEFAULTS.perform_initial_validation
    )
    checkpoint_policy: Literal["best", "all", "none"] = setting(
        "After which validations to save a checkpoint.", _DEFAULTS.checkpoint_policy
    )
    checkpoint_storage: StorageField | None = setting(
        "Where checkpoints go: a URL, or a type with its settings.", None
    )
    checkpoint_async: bool = setting(
        "Train on while a checkpoint is written and uploaded.", _DEFAULTS.checkpoint_async
    )
    checkpoint_exit_timeout_s: float = setting(
        "Seconds that the end of a trial waits for its last checkpoint.",
        _DEFAULTS.checkpoint_exit_timeout_s,
        ge=0,
    )
    preemption_grace_s: float | None = setting(
        "Seconds between SIGTERM and the kill; null = DETCORE_GRACE_S, or as Slurm "
        "or Kubernetes tell.",
        None,
        gt=0,
    )
    max_restarts: int = setting(
        "How often a trial that failed starts again from its last checkpoint.", 5, ge=0
    )
    stop_at_nan: bool = setting(
        "End a trial with an error at the first metric that is NaN, before it saves.",
        _DEFAULTS.stop_at_nan,
    )
    hang_timeout_s: float | None = setting(
        "End a trial with an error, and its stacks in the log, if it reports nothing "
        "for so many seconds; null = never.",
        None,
        gt=0,
    )
    reproducibility: Reproducibility = setting(
        "Settings for repeatable runs.", default_factory=lambda: Reproducibility()
    )
    optimizations: Optimizations = setting(
        "How gradients and metrics travel between workers.", Optimizations()
    )
    profiling: Profiling = setting("Which batches to profile.", Profiling())
    resources: Resources = setting("Resources of a trial.", Resources())
    launcher: LauncherField = setting(
        "Launcher of a trial's workers: its name, or a mapping with 'name' and its settings.",
        "local",
    )
    environment: Any = setting(
        f"For a cluster: {NO_EFFECT}; the trial runs in the Python and with the variables of the "
        "shell that starts detcore.",
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
        """Return the settings that a trial's launcher, workers and plugins need."""
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
    def _rules(self, info: ValidationInfo) -> ExperimentConfig:
        if not (info.context or {}).get(RULES_LATER):
            raise_problems("ExperimentConfig", broken_rules(Facts(self.model_dump(mode="json"))))
        return self


def smoke_config(config: ExperimentConfig) -> ExperimentConfig:
    """Return a configuration changed to one batch, one validation and one checkpoint."""
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
