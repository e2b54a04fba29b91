"""Hook implementations; imports click when a command is called for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore import hookimpl

if TYPE_CHECKING:
    import click

    from detcore.hooks import FailureActionType

__all__ = ["detcore_register_commands", "detcore_register_failure_action"]


@hookimpl
def detcore_register_commands() -> list[click.Command]:
    """Register ``detcore replay``, ``diverge``, ``reproduce`` and ``data``."""
    from detcore_replay._commands import diverge, replay, reproduce
    from detcore_replay._data_command import data_group

    return [replay, diverge, reproduce, data_group]


@hookimpl
def detcore_register_failure_action() -> FailureActionType:
    """Register ``on_failure: bundle``."""
    from detcore.hooks import FailureActionType

    return FailureActionType(name="bundle", function="detcore_replay._bundle:write_bundle")
