"""Register ``detcore plugins new`` and ``storage torture``; imports nothing of the suites."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["detcore_register_commands"]


@hookimpl
def detcore_register_commands() -> list[click.Command]:
    """Register commands in ``detcore plugins`` and ``detcore storage``."""
    import click

    from detcore_testing._scaffold import new_plugin
    from detcore_testing._torture_command import torture

    return [
        click.Group("plugins", commands=[new_plugin], help="Added to ``detcore plugins``."),
        click.Group("storage", commands=[torture], help="Added to ``detcore storage``."),
    ]
