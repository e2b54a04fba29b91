"""Hook implementations; imports click when a command is called for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore import hookimpl

if TYPE_CHECKING:
    import click

__all__ = ["detcore_register_commands"]


@hookimpl
def detcore_register_commands() -> list[click.Command]:
    """Register the commands that show records, two of them in groups of the core's."""
    import click

    from detcore_report._commands import plot_experiment, report
    from detcore_report._tensorboard import tensorboard
    from detcore_report._top import top
    from detcore_report._trial_command import describe_trial, plot_trial

    return [
        click.Group("experiment", commands=[plot_experiment]),
        click.Group("trial", commands=[describe_trial, plot_trial]),
        report,
        tensorboard,
        top,
    ]
