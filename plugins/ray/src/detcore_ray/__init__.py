"""Run detcore trials on a Ray cluster.

Names are imported on first use, so that finding the plugin does not import Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_ray.launcher import RayLauncher
    from detcore_ray.ray_settings import RaySettings

__version__ = "0.1.0"

__all__ = ["RayLauncher", "RaySettings"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "launcher": "RayLauncher",
        "ray_settings": "RaySettings",
    },
)
