"""Hook implementations; imports click when a command is called for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["detcore_register_commands"]


@hookimpl
def detcore_register_commands() -> click.Command:
    """Register ``detcore migrate``."""
    from detcore_determined._command import migrate

    return migrate
