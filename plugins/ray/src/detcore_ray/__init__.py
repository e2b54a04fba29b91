"""Trials of detcore on a Ray cluster.

Names are imported on first use: finding the plugin must not cost what using it costs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore_ray._launcher import RayLauncher
    from detcore_ray._settings import RaySettings

__version__ = "0.1.0"

__all__ = ["RayLauncher", "RaySettings"]

_HOMES = {"RayLauncher": "_launcher", "RaySettings": "_settings"}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore_ray' has no attribute {name!r}")
    return getattr(importlib.import_module(f"detcore_ray.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
