"""Hook implementations. This module imports click on demand and no HTTP library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["detcore_register_commands"]


@hookimpl
def detcore_register_commands() -> list[click.Command]:
    """Register ``detcore serve``, ``detcore ui``, ``detcore user`` and ``detcore database``."""
    from detcore_server.commands.database_commands import database_group
    from detcore_server.commands.serve_command import serve
    from detcore_server.commands.ui_command import ui
    from detcore_server.commands.user_commands import user_group

    return [serve, ui, user_group, database_group]
