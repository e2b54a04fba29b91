"""Hook implementations; imports click when a command is called for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["detcore_register_commands"]


@hookimpl
def detcore_register_commands() -> list[click.Command]:
    """Register ``detcore replay``, ``diverge`` and ``data``."""
    from detcore_replay._commands import diverge, replay
    from detcore_replay._data_command import data_group

    return [replay, diverge, data_group]
