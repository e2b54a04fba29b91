"""Hook implementations; does not import Ray."""

from __future__ import annotations

from detcore import hookimpl
from detcore.plugins import LauncherType

__all__ = ["detcore_register_launcher"]


@hookimpl
def detcore_register_launcher() -> list[LauncherType]:
    """Register the launcher ``ray``."""
    return [
        LauncherType(
            name="ray", launcher="detcore_ray:RayLauncher", settings="detcore_ray:RaySettings"
        )
    ]
