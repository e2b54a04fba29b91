"""Hook implementations; click is imported only for a command, and no HTTP library is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore import hookimpl
from detcore.plugins import RoutesType

if TYPE_CHECKING:
    import click

__all__ = ["detcore_register_commands", "detcore_register_routes"]


@hookimpl
def detcore_register_commands() -> click.Command:
    """Register ``detcore migrate``."""
    from detcore_determined.migrate_command import migrate

    return migrate


@hookimpl
def detcore_register_routes() -> RoutesType:
    """Register the routes of Determined's client, which only a server imports."""
    return RoutesType(
        name="determined",
        make_router="detcore_determined.routes.router:make_router",
        has_guards=True,  # the client asks for the version, and logs in, without a token
    )
