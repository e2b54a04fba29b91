"""Hook implementations; click is imported only for a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["detcore_register_commands"]


@hookimpl
def detcore_register_commands() -> list[click.Command]:
    """Register the commands of this distribution."""
    from detcore_replay.commands.check_command import check_resume
    from detcore_replay.commands.data_command import data_group
    from detcore_replay.commands.replay_commands import diverge, replay

    return [replay, diverge, check_resume, data_group]
