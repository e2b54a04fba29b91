"""Hook implementations; imports click when a command is called for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["detcore_register_commands"]


@hookimpl
def detcore_register_commands() -> list[click.Command]:
    """Register ``detcore replay`` and ``detcore diverge``."""
    from detcore_replay._commands import diverge, replay

    return [replay, diverge]
