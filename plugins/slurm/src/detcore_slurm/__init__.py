"""Run detcore trials as Slurm jobs.

Names are imported on first use, so that finding the plugin imports nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_slurm.launcher import SlurmLauncher
    from detcore_slurm.slurm_settings import SlurmSettings

__version__ = "0.1.0"

__all__ = ["SlurmLauncher", "SlurmSettings"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "launcher": "SlurmLauncher",
        "slurm_settings": "SlurmSettings",
    },
)
