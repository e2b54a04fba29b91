"""Hook implementations."""

from __future__ import annotations

from detcore import hookimpl
from detcore.plugins import LauncherType

__all__ = ["detcore_register_launcher"]


@hookimpl
def detcore_register_launcher() -> list[LauncherType]:
    """Register the launcher ``slurm``."""
    return [
        LauncherType(
            name="slurm",
            launcher="detcore_slurm:SlurmLauncher",
            settings="detcore_slurm:SlurmSettings",
        )
    ]
