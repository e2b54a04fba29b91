"""Hook implementations; click is imported only for a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["detcore_register_commands"]


@hookimpl
def detcore_register_commands() -> list[click.Command]:
    """Register the commands for reports, one of them in a group of the core."""
    import click

    from detcore_report.commands.report_command import plot_experiment, report
    from detcore_report.commands.tensorboard_command import tensorboard
    from detcore_report.commands.top_command import top

    return [
        click.Group("experiment", commands=[plot_experiment]),
        report,
        tensorboard,
        top,
    ]
