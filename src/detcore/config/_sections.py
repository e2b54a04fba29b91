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

    experiment_seed: int = Field(
        default_factory=lambda: _draw_seed(),
        ge=0,
        le=2**31 - 1,
        description="Seed of everything random; default: drawn for each experiment.",
    )
    deterministic_ops: bool | None = Field(
        default=None,
        description="Make the framework use only operations that give the same bits each time; "
        "null = the framework's own choice.",
    )
    step_digests: int = Field(
        default=10,
        ge=0,
        description="Record digests of every k-th step, by which detcore diverge compares runs; "
        "0 = of none.",
    )


def _draw_seed() -> int:
    import secrets

    return secrets.randbelow(2**31)


_GRADIENTS = GradientSettings()


class Optimizations(Section):
    """Exchange of gradients and metrics between the workers of a trial."""

    aggregation_frequency: int = Field(
        default=_GRADIENTS.aggregation_frequency,
        ge=1,
        description="Batches whose gradients are summed before each update.",
    )
    average_aggregated_gradients: bool = Field(
        default=_GRADIENTS.average_aggregated_gradients,
        description="Divide the added gradients by aggregation_frequency.",
    )
    average_training_metrics: bool = Field(
        default=_GRADIENTS.average_training_metrics,
        description="Average training metrics over all workers.",
    )
    gradient_compression: bool = Field(
        default=_GRADIENTS.gradient_compression,
        description="Send gradients as half-precision numbers.",
    )
    mixed_precision: Literal["O0", "O1", "O2", "O3"] = Field(
        default="O0", description="Level of mixed precision for apex; has no effect."
    )
    grad_updates_size_file: str | None = Field(
        default=None, description="Write the sizes of gradient updates to this file."
    )
    auto_tune_tensor_fusion: bool = Field(
        default=False, description="Let Horovod find the next two settings."
    )
    tensor_fusion_threshold: int | None = Field(
        default=None,
        ge=0,
        description="Megabytes of gradients that Horovod sends together; null = as it thinks best.",
    )
    tensor_fusion_cycle_time: int | None = Field(
        default=None,
        ge=0,
        description="Milliseconds between two looks of Horovod; null = as it thinks best.",
    )


class Profiling(Section):
    """Selection of batches to profile."""

    enabled: bool = Field(default=False, description="Whether to profile.")
    begin_on_batch: int = Field(default=0, ge=0, description="First batch to profile.")
    end_after_batch: int | None = Field(
        default=None, ge=0, description="Last batch to profile; null = to the end."
    )
    sync_timings: bool = Field(default=True, description="Wait for the device at each measurement.")


def _mount_target(value: str) -> str:
    if value.strip("/") in ("", "."):
        raise problem(f'"{value}" cannot be a place to mount to')
    return value


class BindMount(Section):
    """A folder of the host made visible in the container."""

    host_path: AbsolutePath = Field(description="Folder on the host; absolute.")
    container_path: Annotated[Name, AfterValidator(_mount_target)] = Field(
        description="Where it appears in the container."
    )
    read_only: bool = Field(default=False, description="Whether the container may only read it.")
    propagation: str = Field(default="rprivate", description="Mount propagation.")


class Device(Section):
    """A device of the host made visible in the container."""

    host_path: AbsolutePath = Field(description="Device on the host; absolute.")
    container_path: Name = Field(description="Where it appears in the container.")
    mode: str = Field(default="mrw", description="Permissions of the container on it.")


class PluginLauncher(Lenient):
    """A launcher with settings, which are passed on as they are."""

    name: Name = Field(description="Name under which a plugin registers the launcher.")


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

    slots_per_trial: int = Field(
        default=1,
        ge=0,
        description="Worker processes (and devices) per trial; 0 = one, on the CPU.",
    )
    max_slots: int | None = Field(default=None, ge=0, description="Slots for all trials together.")
    weight: float = Field(default=1.0, gt=0, description=f"Share of the cluster; {FOR_CLUSTERS}")
    priority: int | None = Field(
        default=None, ge=1, le=99, description=f"1 = first; {FOR_CLUSTERS}"
    )
    resource_pool: str = Field(default="", description=f"Pool of machines; {FOR_CLUSTERS}")
    native_parallel: bool = Field(default=False, description=FROM_EARLIER)
    agent_label: str = Field(default="", description=FROM_EARLIER)
    shm_size: ShmSize | None = Field(
        default=None,
        description=f"Shared memory of the container, bytes or '1.5 gb'; {FOR_CLUSTERS}",
    )
    devices: list[Device] = Field(default=[], description=f"Devices of the host; {FOR_CLUSTERS}")


class _ImagePerDevice(Section):
    cpu: str | None = Field(default=None, description="Image for machines without accelerator.")
    cuda: str | None = Field(default=None, description="Image for NVIDIA devices.")
    rocm: str | None = Field(default=None, description="Image for AMD devices.")
    gpu: str | None = Field(default=None, description="Earlier name of 'cuda'.")


class _VariablesPerDevice(Section):
    cpu: list[str] = Field(default=[], description="NAME=VALUE for machines without accelerator.")
    cuda: list[str] = Field(default=[], description="NAME=VALUE for NVIDIA devices.")
    rocm: list[str] = Field(default=[], description="NAME=VALUE for AMD devices.")
    gpu: list[str] = Field(default=[], description="Earlier name of 'cuda'.")


class ProxyPort(Section):
    """A port that the cluster's proxy forwards."""

    proxy_port: int = Field(ge=1, le=65535, description="The port.")
    proxy_tcp: bool = Field(default=False, description="Pass on raw TCP instead of HTTP.")
    unauthenticated: bool = Field(default=False, description="Let anybody connect.")


class RegistryAuth(Lenient):
    """Credentials for a registry of images."""

    username: str | None = Field(default=None, description="User name.")
    password: str | None = Field(default=None, description="Password.")
    serveraddress: str | None = Field(default=None, description="Address of the registry.")


class EnvironmentConfig(Section):
    """The container a cluster runs the trial in."""

    image: (
        Annotated[
            Annotated[str, Tag(TEXT)] | Annotated[_ImagePerDevice, Tag(MAPPING)],
            BY_KIND,
            only(TEXT, MAPPING),
        ]
        | None
    ) = Field(default=None, description="Image, or one per kind of device.")
    environment_variables: Annotated[
        Annotated[list[str], Tag(LIST)] | Annotated[_VariablesPerDevice, Tag(MAPPING)],
        BY_KIND,
        only(LIST, MAPPING),
    ] = Field(default=[], description="NAME=VALUE, or a list of them per kind of device.")
    ports: dict[str, Annotated[int, Field(ge=1, le=65535)]] = Field(
        default={}, description="Named ports of the container."
    )
    proxy_ports: list[ProxyPort] = Field(default=[], description="Ports that the proxy passes on.")
    force_pull_image: bool = Field(
        default=False, description="Fetch the image even if it is there."
    )
    registry_auth: RegistryAuth | None = Field(
        default=None, repr=False, description="Credentials for the registry."
    )
    pod_spec: dict[str, Any] | None = Field(
        default=None, description="Kubernetes pod specification."
    )
    add_capabilities: list[str] = Field(default=[], description="Kernel capabilities to add.")
    drop_capabilities: list[str] = Field(default=[], description="Kernel capabilities to drop.")


class Slurm(Lenient):
    """Settings of a Slurm cluster."""

    slots_per_node: int | None = Field(default=None, ge=1, description="Slots on each node.")
    gpu_type: str | None = Field(default=None, description="Kind of GPU to ask for.")
    sbatch_args: list[str] = Field(default=[], description="Further arguments of sbatch.")


class Pbs(Lenient):
    """Settings of a PBS cluster."""

    slots_per_node: int | None = Field(default=None, ge=1, description="Slots on each node.")
    pbsbatch_args: list[str] = Field(default=[], description="Further arguments of qsub.")
