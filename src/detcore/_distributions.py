"""Packages of detcore's other distributions: imported by name, because the core needs none."""

from __future__ import annotations

import importlib
from types import ModuleType

from detcore.contract.errors import RunError


class MissingDistributionError(ModuleNotFoundError, RunError):
    """A distribution of detcore is needed and not installed."""


def import_distribution(module: str, *, needed_by: str) -> ModuleType:
    """Import a module of another distribution of detcore.

    Args:
        module: Such as ``"detcore_report"`` or ``"detcore_report.charts"``.
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
    """Return the message on something that a missing distribution contains."""
    return (
        f"{needed_by} is part of {distribution}, which is not installed.\n"
        f"Install it with: {install_command(distribution)}"
    )


def install_command(distribution: str) -> str:
    """Return the command that installs a distribution of detcore, by the core's extra."""
    return f"pip install 'detcore[{distribution.removeprefix('detcore-')}]'"
