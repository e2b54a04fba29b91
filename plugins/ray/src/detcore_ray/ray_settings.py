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
    "STRICT_SPREAD": "each on a node of its own",
}


def _as_text(value: object) -> object:
    """Return a number or boolean as text, since YAML has no quotes around ``1``."""
    return str(value) if isinstance(value, int | float) else value


_Amount = Annotated[float, Field(ge=0)]
_Text = Annotated[str, BeforeValidator(_as_text)]


class RaySettings(BaseModel):
    """How trials are placed; an experiment file has these names beside ``name: ray``.

    Attributes:
        address: ``"auto"``, ``"HOST:PORT"`` of a running cluster's head node, or ``"local"``: a
            cluster of this machine is started and ends with the run. Default: the variable
            ``RAY_ADDRESS``, else ``"local"``.
        strategy: Where the workers of one trial go: ``PACK`` on as few nodes as possible,
            ``SPREAD`` on as many, ``STRICT_PACK`` all on one, ``STRICT_SPREAD`` each on its own.
        cpus_per_slot: CPUs that each worker takes.
        gpus_per_slot: GPUs that each worker takes, and sees.
        resources: More of what Ray counts, for each worker.
        runtime_env: Ray's runtime environment of the workers. Without ``working_dir``, nodes on
            other machines get a copy of the folder of the trial's code.
        variables: More variables for the workers.
        wait_for_nodes: Whether a trial waits for nodes that are not there yet, as with Ray's
            autoscaler. Otherwise a trial that the cluster cannot hold is an error.
        lease_s: After how many seconds a worker ends that hears nothing of the runner; >= 2. A
            trial starts again on other nodes no earlier than that.
    """

    # A runtime environment may hold secrets.
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    address: str | None = Field(
        default=None, description="auto, HOST:PORT of the head node, or local."
    )
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        default="PACK", description="How the workers of a trial are spread over the nodes."
    )
    cpus_per_slot: _Amount = Field(default=1, description="CPUs that each worker takes.")
    gpus_per_slot: _Amount = Field(default=0, description="GPUs that each worker takes, and sees.")
    resources: dict[str, _Amount] = Field(
        default={}, description="More of what Ray counts, for each worker."
    )
    runtime_env: dict[str, Any] = Field(
        default={}, description="Ray's runtime environment of the workers."
    )
    variables: dict[str, _Text] = Field(default={}, description="More variables for the workers.")
    wait_for_nodes: bool = Field(
        default=False, description="Whether a trial waits for nodes that are to come."
    )
    lease_s: float = Field(
        default=30.0,
        ge=2,
        description="Seconds after which a worker ends that hears nothing of the run.",
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {name: each for name, each in value.items() if each is not None}

    @field_validator("address")
    @classmethod
    def _is_of_a_cluster(cls, address: str | None) -> str | None:
        if address is not None and address.startswith("ray://"):
            raise ValueError(
                f"{address!r} is the address of a Ray client server. The runner joins the cluster "
                "itself: run it on a node of the cluster with launcher.address: auto, or give "
                "HOST:PORT of the head node"
            )
        return address

    @model_validator(mode="after")
    def _takes_something(self) -> Self:
        if not self.bundle:
            raise ValueError(
                "a slot that needs nothing cannot be placed: give cpus_per_slot, gpus_per_slot or "
                "resources"
            )
        return self

    @property
    def bundle(self) -> dict[str, float]:
        """Resources of each worker, by Ray's names; without those that are 0."""
        amounts = {"CPU": self.cpus_per_slot, "GPU": self.gpus_per_slot, **self.resources}
        return {name: float(amount) for name, amount in amounts.items() if amount}
