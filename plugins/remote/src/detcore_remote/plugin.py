"""Hook implementations; imports click when a command is called for, and no HTTP library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["detcore_register_commands"]


@hookimpl
def detcore_register_commands() -> list[click.Command]:
    """Register the commands of ``detcore user`` that ask a server."""
    from detcore_remote._user_commands import user_group

    return [user_group]
