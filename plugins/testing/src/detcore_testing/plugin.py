"""Register ``detcore plugins new``; imports nothing of the suites."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["detcore_register_commands"]


@hookimpl
def detcore_register_commands() -> click.Group:
    """Register the command that writes a new plugin, in ``detcore plugins``."""
    import click

    from detcore_testing.scaffold import new_plugin

    return click.Group("plugins", commands=[new_plugin], help="Added to ``detcore plugins``.")
