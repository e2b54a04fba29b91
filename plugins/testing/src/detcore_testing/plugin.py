"""Register ``detcore plugins new`` without importing the suites."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["detcore_register_commands"]


@hookimpl
def detcore_register_commands() -> click.Group:
    """Register ``new`` in the command group ``detcore plugins``."""
    import click

    from detcore_testing.scaffold import new_plugin

    return click.Group("plugins", commands=[new_plugin], help="Added to ``detcore plugins``.")
