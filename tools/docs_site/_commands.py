"""Every command and its options, from click."""

from __future__ import annotations

from collections.abc import Iterator

import click

from detcore.cli import CliContext, main
from detcore.cli.main_command import DISTRIBUTION_OF_COMMAND
from detcore.environment import read_environment
from docs_site._markdown import cell

__all__ = ["all_commands", "commands_page"]

_ABOUT = """\
# Commands

Made from the commands themselves; `detcore COMMAND --help` shows the same.
[Command line](../command-line.md) describes tables, JSON, exit codes and environment variables.
"""


def all_commands() -> Iterator[tuple[click.Context, click.Command]]:
    """Yield detcore's commands that are not hidden, each group before its members."""
    # Commands of other plugins are not part of this page.
    ours = {name.removeprefix("detcore-") for name in DISTRIBUTION_OF_COMMAND.values()}
    obj = CliContext(environment=read_environment({}), allowed=frozenset(ours))
    yield from _walk(click.Context(main, info_name="detcore", obj=obj), main)


def _walk(
    context: click.Context, command: click.Command
) -> Iterator[tuple[click.Context, click.Command]]:
    yield context, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                inner = click.Context(below, info_name=name, parent=context)
                yield from _walk(inner, below)


def commands_page() -> str:
    """Return the page."""
    return "\n".join([_ABOUT, *(_section(context, command) for context, command in all_commands())])


def _section(context: click.Context, command: click.Command) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"## {context.command_path}\n", f"```text\n{context.command_path} {usage}\n```\n"]
    lines += [*_paragraphs(command.help or ""), *_paragraphs(command.epilog or "")]
    rows = [_option(parameter, context) for parameter in command.params]
    if any(rows):
        lines += ["| | |\n| --- | --- |\n" + "\n".join(row for row in rows if row) + "\n"]
    if isinstance(command, click.Group):
        names = command.list_commands(context)
        links = [f"[{name}](#{context.command_path.replace(' ', '-')}-{name})" for name in names]
        lines.append(f"Commands: {', '.join(links)}\n")
    return "\n".join(lines)


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.replace("\r", "").split("\n\n"):
        if "\b" in paragraph:
            lines = [line for line in paragraph.splitlines() if line.strip() not in ("\b", "")]
            yield "```text\n" + "\n".join(lines) + "\n```\n"
        elif paragraph.strip():
            yield _text(paragraph) + "\n"


def _text(text: str) -> str:
    escaped = " ".join(text.split()).replace("<", "&lt;")
    return escaped.replace("*", "\\*").replace("[", "\\[")


def _option(parameter: click.Parameter, context: click.Context) -> str:
    if isinstance(parameter, click.Option):
        record = parameter.get_help_record(context)
        if record is None:
            return ""
        name, about = record
    else:
        name, about = parameter.make_metavar(context), ""
        if not about and "." not in name:
            return ""
    return f"| `{cell(name)}` | {cell(_text(about))} |"
