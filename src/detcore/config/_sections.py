"""Define the smaller sections of the experiment file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Tag

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
    named,
    only,
    setting,
    tagged,
)
from detcore.config._problem import problem
from detcore.contract.values import GradientSettings

__all__ = [
    "BindMount",
    "EnvironmentConfig",
    "LauncherField",
    "LocalLauncherSettings",
    "Optimizations",
    "Pbs",
    "PluginLauncher",
    "Profiling",
    "Reproducibility",
    "Resources",
    "Slurm",
]


class Reproducibility(Section):
    """Settings for repeatable runs."""

    experiment_seed: int = setting(
        "Seed of everything random; default: drawn for each experiment.",
        default_factory=lambda: _draw_seed(),
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


def _draw_seed() -> int:
    import secrets

    return secrets.randbelow(2**31)


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


LauncherField = Annotated[
    Annotated[Name, named("name", "launcher", other=PluginLauncher), Tag(TEXT)]
    | Annotated[
        PluginLauncher,
        tagged("name", "launcher", {}, other=PluginLauncher, retired={}),
        DUMP_ANY,
        Tag(MAPPING),
    ],
    BY_KIND,
    only(TEXT, MAPPING),
]


class Resources(Section):
    """Resources of a trial."""

    slots_per_trial: int = setting(
        "Worker processes (and devices) per trial; 0 = one, on the CPU.", 1, ge=0
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
