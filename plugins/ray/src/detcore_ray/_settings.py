"""What an experiment file says under ``launcher``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from detcore.errors import RunError

__all__ = ["STRATEGIES", "Settings", "check_settings"]

STRATEGIES = {
    "PACK": "on as few nodes as possible",
    "SPREAD": "on as many nodes as possible",
    "STRICT_PACK": "all on one node",
    "STRICT_SPREAD": "each on a node of its own",
}
_SHORTEST_LEASE_S = 2.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How trials are placed; see `detcore_ray.RayLauncher`."""

    address: str | None
    strategy: str
    bundle: Mapping[str, float]
    runtime_env: Mapping[str, Any]
    variables: Mapping[str, str]
    wait_for_nodes: bool
    lease_s: float


def check_settings(
    *,
    address: str | None,
    strategy: str,
    cpus_per_slot: float,
    gpus_per_slot: float,
    resources: Mapping[str, float],
    runtime_env: Mapping[str, Any],
    variables: Mapping[str, str],
    wait_for_nodes: bool,
    lease_s: float,
) -> Settings:
    """Return the settings of a launcher.

    Raises:
        RunError: If one makes no sense.
    """
    if address is not None and address.startswith("ray://"):
        raise RunError(
            f"launcher.address is {address!r}, the address of a Ray client server.\n"
            "The runner joins the cluster itself. Run it on a node of the cluster with "
            "launcher.address: auto, or give HOST:PORT of the head node."
        )
    if strategy not in STRATEGIES:
        listed = "; ".join(f"{name}: {what}" for name, what in STRATEGIES.items())
        raise RunError(f"launcher.strategy is {strategy!r}. It may be one of these. {listed}.")
    bundle = {"CPU": cpus_per_slot, "GPU": gpus_per_slot, **resources}
    for name, amount in bundle.items():
        is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not is_number or not math.isfinite(amount) or amount < 0:
            raise RunError(
                f"launcher: each slot is to have {amount!r} of {name}; expected a number, 0 or "
                "more."
            )
    bundle = {name: float(amount) for name, amount in bundle.items() if amount}
    if not bundle:
        raise RunError(
            "launcher: a slot that needs nothing cannot be placed.\n"
            "Give cpus_per_slot, gpus_per_slot or resources."
        )
    if not lease_s >= _SHORTEST_LEASE_S:
        raise RunError(f"launcher.lease_s is {lease_s!r}; at least {_SHORTEST_LEASE_S:g} seconds.")
    return Settings(
        address=address,
        strategy=strategy,
        bundle=bundle,
        runtime_env=dict(runtime_env),
        variables={name: str(value) for name, value in variables.items()},
        wait_for_nodes=wait_for_nodes,
        lease_s=float(lease_s),
    )
