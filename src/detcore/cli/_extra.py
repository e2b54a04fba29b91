"""Commands that are installed beside detcore, and how to install them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from detcore._distributions import describe_missing, install_command
from detcore.errors import RunError

if TYPE_CHECKING:
    from detcore.hooks import PluginEntry

__all__ = ["DISTRIBUTION_OF_COMMAND", "explain_missing", "missing_command"]

DISTRIBUTION_OF_COMMAND: dict[str, str] = {
    "diverge": "detcore-replay",
    "migrate": "detcore-determined",
    "replay": "detcore-replay",
    "report": "detcore-report",
    "reproduce": "detcore-replay",
    "serve": "detcore-server",
    "top": "detcore-report",
    "ui": "detcore-server",
    "user create": "detcore-server",
    "user password": "detcore-server",
}
"""Commands of detcore's own distributions: only that distribution may register the command.

It registers those of a built-in group as a `click.Group` of that name.
"""


def explain_missing(name: str, entry: PluginEntry | None) -> str:
    """Return how to get a command of `DISTRIBUTION_OF_COMMAND` that cannot run.

    Args:
        name: The command.
        entry: The installed plugin that declares it, which cannot be used; None if the
            distribution is not installed.
    """
    if entry is None:
        return install_command(DISTRIBUTION_OF_COMMAND[name])
    return f"{entry.state.value}: detcore plugins info {entry.name}"


def missing_command(name: str, summary: str, entry: PluginEntry | None) -> click.Command:
    """Return a command that takes any arguments and fails with how to get the real one.

    Args:
        name: A command of `DISTRIBUTION_OF_COMMAND`.
        summary: The line that help shows of it.
        entry: As for `explain_missing`.
    """
    distribution = DISTRIBUTION_OF_COMMAND[name]
    if entry is None:
        message = describe_missing(distribution, needed_by=f"'detcore {name}'")
    else:
        message = (
            f"'detcore {name}' is part of {distribution}, whose plugin {entry.name!r} is "
            f"{entry.state.value}.\nDetails: detcore plugins info {entry.name}"
        )

    def fail() -> None:
        raise RunError(message)

    # Without a place for the arguments, click would complain about them first.
    words = click.Argument(
        ["words"], nargs=-1, metavar="...", type=click.UNPROCESSED, expose_value=False
    )
    return click.Command(
        name.rpartition(" ")[2],
        callback=fail,
        params=[words],
        help=f"{summary}\n\n\b\n{message}",
        short_help=summary,
        context_settings={"ignore_unknown_options": True},
    )
