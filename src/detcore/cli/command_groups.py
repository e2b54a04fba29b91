"""Command groups that import commands on use, and suggest a command for a mistyped name."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Iterable, Mapping
from typing import Any

import click

from detcore.contract.errors import closest_match

# click truncates longer summaries. Lines are wrapped at the width of the terminal.
_SUMMARY_LENGTH = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Lazy:
    """A command that is imported when it runs.

    Attributes:
        target: Location as ``"module:attribute"``, or None for a command that the plugin of another
            distribution registers.
        summary: One-line help.
    """

    target: str | None
    summary: str


class CommandGroup(click.Group):
    """A group that suggests a command for a mistyped name."""

    def __init__(
        self, *args: Any, lazy_commands: Mapping[str, Lazy] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy_commands = dict(lazy_commands or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in order, lazily imported commands first."""
        return [*self.lazy_commands, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None. Import the command if necessary."""
        lazy = self.lazy_commands.get(cmd_name)
        if lazy is None:
            return super().get_command(ctx, cmd_name)
        if lazy.target is None:
            root: Any = ctx.find_root().command
            return root.find_elsewhere(ctx, f"{self.name} {cmd_name}", lazy)  # type: ignore[no-any-return]
        return import_command(lazy)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the typed command. An error suggests the command that was probably meant."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is not None:
            return name, command, args[1:]
        if name.startswith("-"):
            return super().resolve_command(ctx, args)  # click reports the unknown option
        raise click.UsageError(self.explain_unknown(ctx, name), ctx=ctx)

    def explain_unknown(self, ctx: click.Context, name: str) -> str:
        """Return the message for an unknown command."""
        hint = self.suggest_command(ctx, name, self.list_commands(ctx))
        return f"'{ctx.command_path}' has no command {name!r}.\n{hint}"

    def suggest_command(self, ctx: click.Context, name: str, names: Iterable[str]) -> str:
        """Return a suggestion: a command in `names`, or a command of another group."""
        root = ctx.find_root()
        elsewhere = []
        if isinstance(root.command, CommandGroup):
            for group_name in root.command.lazy_commands:
                group = root.command.get_command(root, group_name)
                commands = group.list_commands(ctx) if isinstance(group, click.Group) else ()
                if name == "list" and f"{self.name}s" in commands:  # such as `experiment trials`
                    return f"Did you mean 'detcore {group_name} {self.name}s'?"
                if name in commands:
                    elsewhere.append(f"'detcore {group_name} {name}'")
        near = closest_match(name, names)
        if near and not elsewhere:
            return f"Did you mean '{near}'?"
        if elsewhere:
            return f"Did you mean {' or '.join(elsewhere)}?"
        path = "detcore" if ctx is root else ctx.command_path  # not "python -m detcore"
        return f"'{path} --help' lists the commands."

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands without importing them."""
        lines = [(name, lazy.summary) for name, lazy in self.lazy_commands.items()]
        for name in super().list_commands(ctx):
            command = super().get_command(ctx, name)
            if command is not None and not command.hidden:
                lines.append((name, command.get_short_help_str(_SUMMARY_LENGTH)))
        if lines:
            with formatter.section("Commands"):
                formatter.write_dl(lines)


def import_command(lazy: Lazy) -> click.Command:
    """Import a command that has a target."""
    assert lazy.target is not None
    command: click.Command = pkgutil.resolve_name(lazy.target)
    return command
