"""Import packages of detcore's other distributions by name, because the core needs none."""

from __future__ import annotations

import importlib
from types import ModuleType

from detcore.contract.errors import RunError

# Documented names in experiment files that may not be provided by an installed plugin.
_ABSENT = {
    "optuna": "It is part of detcore-optuna. Install it with: pip install 'detcore[optuna]'",
    "custom": "Register the class by the hook detcore_register_searcher, and use its name.",
    "pbt": "adaptive_asha and optuna also spend most of the time on the best trials.",
    "s3": "Install it with: pip install 'detcore-storage[s3]'\n"
    "Or give a URL: checkpoint_storage: s3://BUCKET/PREFIX",
    "gcs": "Install it with: pip install 'detcore-storage[gcs]'\n"
    "Or give a URL: checkpoint_storage: gs://BUCKET/PREFIX",
    "azure": "Give a URL: checkpoint_storage: abfs://CONTAINER",
}


class MissingDistributionError(ModuleNotFoundError, RunError):
    """Raised when a required distribution of detcore is not installed."""


def import_distribution(module: str, *, needed_by: str) -> ModuleType:
    """Import a module of another distribution of detcore.

    Args:
        module: Module name, such as ``"detcore_report"`` or ``"detcore_report.charts"``.
        needed_by: Subject of the error's message, such as ``"'detcore trial plot'"``.

    Raises:
        MissingDistributionError: If the distribution is not installed.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        message = describe_missing(package.replace("_", "-"), needed_by=needed_by)
        raise MissingDistributionError(message, name=package) from None


def describe_missing(distribution: str, *, needed_by: str) -> str:
    """Return the message about something that a missing distribution provides."""
    return (
        f"{needed_by} is part of {distribution}, which is not installed.\n"
        f"Install it with: {install_command(distribution)}"
    )


def describe_missing_name(name: str) -> str:
    """Return advice if no plugin provides a documented name; empty for other names."""
    return _ABSENT.get(name, "")


def install_command(distribution: str) -> str:
    """Return the command that installs a distribution of detcore, by the core's extra."""
    return f"pip install 'detcore[{distribution.removeprefix('detcore-')}]'"
