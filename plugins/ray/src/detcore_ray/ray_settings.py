"""Settings under ``launcher`` in an experiment file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from typing_extensions import Self

STRATEGIES = {
    "PACK": "on as few nodes as possible",
    "SPREAD": "on as many nodes as possible",
    "STRICT_PACK": "all on one node",
    "STRICT_SPREAD": "each on a separate node",
}


def _to_string(value: object) -> object:
    """Convert a number or boolean to a string, because ``1`` is not quoted in YAML."""
    return str(value) if isinstance(value, int | float) else value


_Amount = Annotated[float, Field(ge=0)]
_String = Annotated[str, BeforeValidator(_to_string)]


class RaySettings(BaseModel):
    """Placement of trials, as written beside ``name: ray`` in an experiment file.

    Attributes:
        address: ``"auto"``, ``"HOST:PORT"`` of a running cluster's head node, or ``"local"`` to
            start a cluster on this machine for the run. Default: the variable ``RAY_ADDRESS``, or
            ``"local"`` if it is not set.
        strategy: Placement of a trial's workers: ``PACK`` on as few nodes as possible, ``SPREAD``
            on as many as possible, ``STRICT_PACK`` on one node, ``STRICT_SPREAD`` each on a
            separate node.
        cpus_per_slot: CPUs per worker.
        gpus_per_slot: GPUs per worker. A worker sees only its GPUs.
        resources: Custom Ray resources per worker.
        runtime_env: Ray runtime environment of the workers. Without ``working_dir``, nodes on other
            machines receive a copy of the trial's code directory.
        variables: Additional environment variables of the workers.
        wait_for_nodes: Whether a trial waits for new nodes, such as from Ray's autoscaler.
            Otherwise a trial that does not fit the cluster is an error.
        lease_s: Seconds without a message from the runner after which a worker exits; >= 2. A trial
            restarts on other nodes only after this time.
    """

    # A runtime environment may contain secrets.
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    address: str | None = Field(
        default=None, description="auto, HOST:PORT of the head node, or local."
    )
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        default="PACK", description="Placement of a trial's workers on the nodes."
    )
    cpus_per_slot: _Amount = Field(default=1, description="CPUs per worker.")
    gpus_per_slot: _Amount = Field(
        default=0, description="GPUs per worker. A worker sees only its GPUs."
    )
    resources: dict[str, _Amount] = Field(
        default={}, description="Custom Ray resources per worker."
    )
    runtime_env: dict[str, Any] = Field(
        default={}, description="Ray runtime environment of the workers."
    )
    variables: dict[str, _String] = Field(
        default={}, description="Additional environment variables of the workers."
    )
    wait_for_nodes: bool = Field(
        default=False, description="Wait for new nodes if a trial does not fit the cluster."
    )
    lease_s: float = Field(
        default=30.0,
        ge=2,
        description="Seconds without a message from the run after which a worker exits.",
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {name: setting for name, setting in value.items() if setting is not None}

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str | None) -> str | None:
        if address is not None and address.startswith("ray://"):
            raise ValueError(
                f"{address!r} is the address of a Ray client server, but the runner joins the "
                "cluster itself. Run it on a node of the cluster with launcher.address: auto, or "
                "set HOST:PORT of the head node"
            )
        return address

    @model_validator(mode="after")
    def _check_bundle(self) -> Self:
        if not self.bundle:
            raise ValueError(
                "a slot without resources cannot be placed. Set cpus_per_slot, gpus_per_slot or "
                "resources"
            )
        return self

    @property
    def bundle(self) -> dict[str, float]:
        """Nonzero resources per worker, by Ray's names."""
        amounts = {"CPU": self.cpus_per_slot, "GPU": self.gpus_per_slot, **self.resources}
        return {name: float(amount) for name, amount in amounts.items() if amount}
