"""Define the sections of the experiment file."""

from __future__ import annotations

import random
import re
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Tag,
    WrapValidator,
)

from detcore.config._fields import (
    BY_KIND,
    DUMP_ANY,
    FOR_CLUSTERS,
    FROM_EARLIER,
    LIST,
    MAPPING,
    TEXT,
    AbsolutePath,
    Lenient,
    Name,
    Section,
    ShmSize,
    Tagged,
    TrainingLength,
    UnitlessLength,
    by_tag,
    only,
    setting,
)
from detcore.config._problem import describe_value, problem
from detcore.contract.values import GradientSettings

_MaxLength = Annotated[
    UnitlessLength,
    Field(description="How long each trial trains at most. A bare number means batches."),
]
_MaxTrials = Annotated[int, Field(ge=1, description="How many trials to run in all.")]
_Concurrent = Annotated[
    int, Field(ge=0, description="How many trials may run at one time; 0 = no limit.")
]
_Divisor = Annotated[
    float, Field(gt=1, description="One in this many trials is promoted to the next rung.")
]
_StopOnce = Annotated[
    bool, Field(description="Decide once per rung, and never continue a trial stopped there.")
]


class _Common(Section):
    metric: Name = setting("The validation metric that ranks trials.")
    smaller_is_better: bool = setting("Whether lower values of it are better.", True)
    source_trial_id: int | None = setting(
        "Start from the latest checkpoint of this trial.", None, ge=1
    )
    source_checkpoint_uuid: str | None = setting("Start from this checkpoint.", None, min_length=1)


class SingleSearcher(_Common):
    """One trial."""

    name: Literal["single"] = setting("One trial.")
    max_length: _MaxLength


class RandomSearcher(_Common):
    """Trials with hyperparameters drawn at random."""

    name: Literal["random"] = setting("Hyperparameters drawn at random.")
    max_length: _MaxLength
    max_trials: _MaxTrials
    max_concurrent_trials: _Concurrent = 16


class GridSearcher(_Common):
    """Every combination of a grid of hyperparameters."""

    name: Literal["grid"] = setting("Every combination of a grid.")
    max_length: _MaxLength
    max_concurrent_trials: _Concurrent = 16


class AdaptiveAshaSearcher(_Common):
    """Many short trials of which the best are continued (asynchronous successive halving)."""

    name: Literal["adaptive_asha"] = setting("Many short trials of which the best are continued.")
    max_length: _MaxLength
    max_trials: _MaxTrials
    mode: Literal["conservative", "standard", "aggressive"] = setting(
        "How early trials are stopped.", "standard"
    )
    divisor: _Divisor = 4.0
    max_rungs: int = setting("How often a trial is judged at most.", 5, ge=1)
    bracket_rungs: list[Annotated[int, Field(ge=1)]] = setting(
        "Rungs of each bracket; empty = chosen by 'mode'.", []
    )
    max_concurrent_trials: _Concurrent = 16
    stop_once: _StopOnce = False


class AsyncHalvingSearcher(_Common):
    """One bracket of asynchronous successive halving."""

    name: Literal["async_halving"] = setting("One bracket of asynchronous successive halving.")
    max_length: _MaxLength
    max_trials: _MaxTrials
    num_rungs: int = setting("How often a trial is judged.", ge=1)
    divisor: _Divisor = 4.0
    max_concurrent_trials: _Concurrent = 16
    stop_once: _StopOnce = False


class OptunaSearcher(_Common):
    """Trials whose hyperparameters Optuna suggests."""

    name: Literal["optuna"] = setting("Hyperparameters that Optuna suggests.")
    max_length: _MaxLength
    max_trials: _MaxTrials
    max_concurrent_trials: _Concurrent = 16
    sampler: str | dict[str, Any] = setting(
        "An Optuna sampler: its name, or 'name' and arguments.", "TPESampler"
    )
    pruner: str | dict[str, Any] = setting(
        "An Optuna pruner: its name, or 'name' and arguments.", "NopPruner"
    )
    pruning_period: int = setting(
        "Ask the pruner this often, in the unit of 'max_length'; 0 = only at the end.", 0, ge=0
    )


class CustomSearcher(_Common):
    """A search method written by the user."""

    name: Literal["custom"] = setting("A search method of your own.")
    unit: Literal["batches", "records", "epochs"] | None = setting(
        "Unit of the lengths that the search method gives.", None
    )


class PbtReplaceFunction(Section):
    """Which trials of a population are replaced."""

    truncate_fraction: float = setting(
        "This part of the population, the worst, is replaced by the best.", ge=0, le=0.5
    )


class PbtExploreFunction(Section):
    """How a copied trial's hyperparameters change."""

    resample_probability: float = setting(
        "Probability of drawing a hyperparameter again.", ge=0, le=1
    )
    perturb_factor: float = setting(
        "Otherwise it is multiplied by 1 plus or minus this.", ge=0, le=1
    )


class PbtSearcher(_Common):
    """Population-based training."""

    name: Literal["pbt"] = setting("Population-based training.")
    population_size: int = setting("How many trials train side by side.", ge=1)
    num_rounds: int = setting("How often the population is judged.", ge=1)
    length_per_round: TrainingLength = setting("How long each trial trains between two judgements.")
    replace_function: PbtReplaceFunction = setting("Which trials are replaced.")
    explore_function: PbtExploreFunction = setting("How hyperparameters change.")


class PluginSearcher(_Common, Lenient):
    """A searcher that a plugin provides; its own settings are passed on unchanged."""

    name: Name = setting("Name under which the plugin registers the searcher.")
    max_length: UnitlessLength | None = setting(
        "How long each trial trains at most, if the method asks for it.", None
    )


RETIRED_SEARCHERS = {
    "adaptive": "adaptive_asha",
    "adaptive_simple": "adaptive_asha",
    "sync_halving": "async_halving",
}

Searcher = (
    SingleSearcher
    | RandomSearcher
    | GridSearcher
    | AdaptiveAshaSearcher
    | AsyncHalvingSearcher
    | OptunaSearcher
    | CustomSearcher
    | PbtSearcher
)
SEARCHERS = by_tag("name", get_args(Searcher))
SEARCHER = Tagged(
    tag="name", what="searcher", other=PluginSearcher, known=SEARCHERS, retired=RETIRED_SEARCHERS
)
SearcherField = Annotated[
    Searcher,
    Field(discriminator="name"),
    WrapValidator(SEARCHER.check_section),
    DUMP_ANY,
]


class _Retention(Section):
    save_experiment_best: int = setting(
        "Keep this many best checkpoints of the whole experiment.", 0, ge=0
    )
    save_trial_best: int = setting("Keep this many best checkpoints of each trial.", 1, ge=0)
    save_trial_latest: int = setting("Keep this many latest checkpoints of each trial.", 1, ge=0)


def _prefix(value: str | None) -> str | None:
    parts = [part for part in (value or "").split("/") if part not in ("", ".")]
    if ".." in parts:
        raise problem(
            f'the prefix "{value}" has a component ".."',
            help=("a prefix may not lead out of itself",),
        )
    return "/".join(parts) or None


_Prefix = Annotated[str | None, AfterValidator(_prefix)]
_Bucket = Annotated[Name, Field(description="Name of the bucket, without a scheme.")]


class SharedFsStorage(_Retention):
    """A folder, local or on a file system that all machines share."""

    type: Literal["shared_fs"] = setting("A folder on a (shared) file system.")
    host_path: AbsolutePath = setting("An existing folder; absolute.")
    storage_path: str | None = setting(
        "Folder below host_path for the checkpoints; relative or absolute.", None
    )
    propagation: str = setting(f"Mount propagation; {FOR_CLUSTERS}", "rprivate")
    container_path: str | None = setting(FROM_EARLIER, None)
    checkpoint_path: str | None = setting(FROM_EARLIER, None)
    tensorboard_path: str | None = setting(FROM_EARLIER, None)


class DirectoryStorage(_Retention):
    """A folder that exists on every machine."""

    type: Literal["directory"] = setting("A folder on every machine.")
    container_path: AbsolutePath = setting("The folder; absolute.")


class S3Storage(_Retention):
    """A bucket of S3 or of a service that speaks its protocol."""

    type: Literal["s3"] = setting("An S3 bucket.")
    bucket: _Bucket
    prefix: _Prefix = setting("Path inside the bucket.", None)
    endpoint_url: str | None = setting("URL of the service; default: Amazon's own.", None)
    access_key: str | None = setting(
        "Access key; default: the usual AWS variables and files.", None
    )
    secret_key: str | None = setting("Secret key that belongs to access_key.", None)


class GcsStorage(_Retention):
    """A bucket of Google Cloud Storage."""

    type: Literal["gcs"] = setting("A Google Cloud Storage bucket.")
    bucket: _Bucket
    prefix: _Prefix = setting("Path inside the bucket.", None)


class AzureStorage(_Retention):
    """A container of Azure Blob Storage."""

    type: Literal["azure"] = setting("An Azure Blob Storage container.")
    container: Name = setting("Name of the container.")
    connection_string: str | None = setting(
        "Connection string; instead of account_url.", None, min_length=1
    )
    account_url: str | None = setting(
        "URL of the account; instead of connection_string.", None, min_length=1
    )
    credential: str | None = setting("Credential for account_url.", None)


class PluginStorage(_Retention, Lenient):
    """A storage type that a plugin provides; its settings are passed on unchanged."""

    type: Name = setting("Name under which the plugin registers the type.")


CheckpointStorage = SharedFsStorage | DirectoryStorage | S3Storage | GcsStorage | AzureStorage
STORAGE_TYPES = by_tag("type", get_args(CheckpointStorage))
STORAGE = Tagged(tag="type", what="storage type", other=PluginStorage, known=STORAGE_TYPES)

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://.|/", re.IGNORECASE)


def _place(value: object) -> object:
    if isinstance(value, (bool, int, float, list)):
        raise problem(
            f"expected a mapping with 'type', or a URL, got {describe_value(value)}",
            choices=STORAGE_TYPES,
        )
    return value


def _url(value: str) -> str:
    if not _SCHEME.match(value):
        raise problem(
            f"expected an absolute path or a URL, got {describe_value(value)}",
            help=("write '/folder', 's3://bucket/prefix', or a mapping with 'type'",),
        )
    return value


StorageField = Annotated[
    Annotated[str, AfterValidator(_url), Tag(TEXT)]
    | Annotated[
        CheckpointStorage,
        Field(discriminator="type"),
        WrapValidator(STORAGE.check_section),
        DUMP_ANY,
        Tag(MAPPING),
    ],
    BY_KIND,
    BeforeValidator(_place),
]


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
        10,
        ge=0,
    )


_GRADIENTS = GradientSettings()


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


class Profiling(Section):
    """Selection of batches to profile."""

    enabled: bool = setting("Whether to profile.", False)
    begin_on_batch: int = setting("First batch to profile.", 0, ge=0)
    end_after_batch: int | None = setting("Last batch to profile; null = to the end.", None, ge=0)
    sync_timings: bool = setting("Wait for the device at each measurement.", True)


def _mount_target(value: str) -> str:
    if value.strip("/") in ("", "."):
        raise problem(f'"{value}" cannot be a place to mount to')
    return value


class BindMount(Section):
    """A folder of the host made visible in the container."""

    host_path: AbsolutePath = setting("Folder on the host; absolute.")
    container_path: Annotated[Name, AfterValidator(_mount_target)] = setting(
        "Where it appears in the container."
    )
    read_only: bool = setting("Whether the container may only read it.", False)
    propagation: str = setting("Mount propagation.", "rprivate")


class Device(Section):
    """A device of the host made visible in the container."""

    host_path: AbsolutePath = setting("Device on the host; absolute.")
    container_path: Name = setting("Where it appears in the container.")
    mode: str = setting("Permissions of the container on it.", "mrw")


class PluginLauncher(Lenient):
    """A launcher with settings, which are passed on as they are."""

    name: Name = setting("Name under which a plugin registers the launcher.")


class LocalLauncherSettings(BaseModel):
    """Settings of the launcher ``local``; it has none."""

    model_config = ConfigDict(extra="forbid")


LAUNCHER = Tagged(tag="name", what="launcher", other=PluginLauncher)
LauncherField = Annotated[
    Annotated[Name, AfterValidator(LAUNCHER.check_name), Tag(TEXT)]
    | Annotated[
        PluginLauncher,
        WrapValidator(LAUNCHER.check_section),
        DUMP_ANY,
        Tag(MAPPING),
    ],
    BY_KIND,
    only(TEXT, MAPPING),
]


class Resources(Section):
    """Resources of a trial."""

    slots_per_trial: int = setting(
        "Worker processes (and devices) per trial; 0 = one, on the CPU.", 1, ge=0, le=65_536
    )
    max_slots: int | None = setting("Slots for all trials together.", None, ge=0)
    weight: float = setting(f"Share of the cluster; {FOR_CLUSTERS}", 1.0, gt=0)
    priority: int | None = setting(f"1 = first; {FOR_CLUSTERS}", None, ge=1, le=99)
    resource_pool: str = setting(f"Pool of machines; {FOR_CLUSTERS}", "")
    native_parallel: bool = setting(FROM_EARLIER, False)
    agent_label: str = setting(FROM_EARLIER, "")
    shm_size: ShmSize | None = setting(
        f"Shared memory of the container, bytes or '1.5 gb'; {FOR_CLUSTERS}", None
    )
    devices: list[Device] = setting(f"Devices of the host; {FOR_CLUSTERS}", [])


class _ImagePerDevice(Section):
    cpu: str | None = setting("Image for machines without accelerator.", None)
    cuda: str | None = setting("Image for NVIDIA devices.", None)
    rocm: str | None = setting("Image for AMD devices.", None)
    gpu: str | None = setting("Earlier name of 'cuda'.", None)


class _VariablesPerDevice(Section):
    cpu: list[str] = setting("NAME=VALUE for machines without accelerator.", [])
    cuda: list[str] = setting("NAME=VALUE for NVIDIA devices.", [])
    rocm: list[str] = setting("NAME=VALUE for AMD devices.", [])
    gpu: list[str] = setting("Earlier name of 'cuda'.", [])


class ProxyPort(Section):
    """A port that the cluster's proxy forwards."""

    proxy_port: int = setting("The port.", ge=1, le=65535)
    proxy_tcp: bool = setting("Pass on raw TCP instead of HTTP.", False)
    unauthenticated: bool = setting("Let anybody connect.", False)


class RegistryAuth(Lenient):
    """Credentials for a registry of images."""

    username: str | None = setting("User name.", None)
    password: str | None = setting("Password.", None)
    serveraddress: str | None = setting("Address of the registry.", None)


class EnvironmentConfig(Section):
    """The container a cluster runs the trial in."""

    image: (
        Annotated[
            Annotated[str, Tag(TEXT)] | Annotated[_ImagePerDevice, Tag(MAPPING)],
            BY_KIND,
            only(TEXT, MAPPING),
        ]
        | None
    ) = setting("Image, or one per kind of device.", None)
    environment_variables: Annotated[
        Annotated[list[str], Tag(LIST)] | Annotated[_VariablesPerDevice, Tag(MAPPING)],
        BY_KIND,
        only(LIST, MAPPING),
    ] = setting("NAME=VALUE, or a list of them per kind of device.", [])
    ports: dict[str, Annotated[int, Field(ge=1, le=65535)]] = setting(
        "Named ports of the container.", {}
    )
    proxy_ports: list[ProxyPort] = setting("Ports that the proxy passes on.", [])
    force_pull_image: bool = setting("Fetch the image even if it is there.", False)
    registry_auth: RegistryAuth | None = setting("Credentials for the registry.", None, repr=False)
    pod_spec: dict[str, Any] | None = setting("Kubernetes pod specification.", None)
    add_capabilities: list[str] = setting("Kernel capabilities to add.", [])
    drop_capabilities: list[str] = setting("Kernel capabilities to drop.", [])


class Slurm(Lenient):
    """Settings of a Slurm cluster."""

    slots_per_node: int | None = setting("Slots on each node.", None, ge=1)
    gpu_type: str | None = setting("Kind of GPU to ask for.", None)
    sbatch_args: list[str] = setting("Further arguments of sbatch.", [])


class Pbs(Lenient):
    """Settings of a PBS cluster."""

    slots_per_node: int | None = setting("Slots on each node.", None, ge=1)
    pbsbatch_args: list[str] = setting("Further arguments of qsub.", [])
