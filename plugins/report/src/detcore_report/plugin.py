"""Hook implementations; imports click when a command is called for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["detcore_register_commands"]


@hookimpl
def detcore_register_commands() -> list[click.Command]:
    """Register ``detcore report``, ``detcore tensorboard`` and ``detcore top``."""
    from detcore_report._commands import report
    from detcore_report._tensorboard import tensorboard
    from detcore_report._top import top

    return [report, tensorboard, top]
