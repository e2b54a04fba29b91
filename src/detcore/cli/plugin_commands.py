"""``detcore plugins``: list installed plugins, their registrations and their faults."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from detcore.cli.command_groups import CommandGroup, Lazy
from detcore.cli.output import Column, count_of, json_option, print_table
from detcore.cli.shell_completion import PLUGIN_NAME
from detcore.contract.values import Framework

if TYPE_CHECKING:
    from detcore.cli.cli_context import CliContext
    from detcore.plugins import PluginEntry, PluginManager, PluginProblem


@click.group(
    "plugins",
    cls=CommandGroup,
    lazy_commands={
        "new": Lazy(None, "Create a working plugin as a starting point."),
        "deliver": Lazy(
            "detcore.cli.deliver_command:deliver",
            "Deliver missed events to plugins that observe trials.",
        ),
    },
)
def plugins_group() -> None:
    """List, describe and check plugins, and create a new plugin."""


@plugins_group.command("list")
@json_option
@click.pass_obj
def list_plugins(obj: CliContext, as_json: bool) -> None:
    """List the installed plugins."""
    manager = obj.plugin_manager(on_problem=_keep_quiet)
    rows = _list_rows(manager)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    titles = ("name", "distribution", "version", "state", "provides")
    print_table(
        [*titles[:-1], Column("provides", wrap=True)],
        [[_format_cell(row[title]) for title in titles] for row in rows],
    )
    count = len(manager.problems())
    if count:
        click.echo(f"{count_of(count, 'fault')}; details: detcore plugins doctor", err=True)


@plugins_group.command("info")
@click.argument("name", type=PLUGIN_NAME)
@click.pass_obj
def show_plugin(obj: CliContext, name: str) -> None:
    """Show the hooks and registrations of the plugin NAME."""
    from detcore.plugins import diagnose

    manager = obj.plugin_manager(on_problem=_keep_quiet)
    manager.entry(name)  # rejects an unknown name before importing plugins
    problems = [problem for problem in diagnose(manager) if problem.plugin == name]
    for line in _describe_plugin(manager, name, problems):
        click.echo(line)


@plugins_group.command("doctor")
@click.pass_context
def find_faults(ctx: click.Context) -> None:
    """Import every plugin, and report each fault with a command that fixes it.

    The exit code is 1 if there are faults, and 0 otherwise.
    """
    from detcore.plugins import diagnose

    obj: CliContext = ctx.obj
    manager = obj.plugin_manager(on_problem=_keep_quiet)
    problems = diagnose(manager)
    for problem in problems:
        click.echo(str(problem))
    plugins = count_of(len(manager.index()), "plugin")
    if problems:
        click.echo(f"{count_of(len(problems), 'fault')} in {plugins}", err=True)
        ctx.exit(1)
    click.echo(f"no faults in {plugins}")


def _keep_quiet(_problem: PluginProblem) -> None:
    """Suppress warnings, because the command prints the problems."""


def _list_rows(manager: PluginManager) -> list[dict[str, Any]]:
    provided = {
        entry.name: [f"{noun} {item.name}" for noun, item in manager.list_registrations(entry.name)]
        for entry in manager.index()
    }
    return [
        {
            "name": entry.name,
            "distribution": entry.distribution,
            "version": entry.version,
            "state": entry.state.value,
            "provides": _list_provisions(manager, entry, provided[entry.name]),
        }
        for entry in manager.index()
    ]


def _list_provisions(
    manager: PluginManager, entry: PluginEntry, registered: list[str]
) -> list[str]:
    """Return the registrations of a plugin, and ``"observer"`` if it observes trials."""
    if entry.state.name != "LOADED":
        return []
    hooks = manager.find_hook_functions(entry.name)
    observes = any(not name.startswith("detcore_register_") for name in hooks)
    return registered + ["observer"] * observes


def _describe_plugin(
    manager: PluginManager, name: str, problems: Sequence[PluginProblem]
) -> list[str]:
    entry = manager.entry(name)
    lines = [
        f"name:          {entry.name}",
        f"distribution:  {entry.distribution} {entry.version}",
        f"installed in:  {entry.folder}",
        f"module:        {entry.value}",
        f"state:         {entry.state.value}",
    ]
    hooks = sorted(manager.find_hook_functions(name))
    lines += _format_section("hooks:", hooks)
    registered = manager.list_registrations(name)
    lines += _format_section("registers:", [f"{noun} {item.name}" for noun, item in registered])
    frameworks = [item for _, item in registered if isinstance(item, Framework)]
    inexact = [
        f"resuming {framework.name} is not bit-exact: {framework.inexact_resume}"
        for framework in frameworks
        if framework.inexact_resume
    ]
    lines += _format_section("not exact:", inexact)
    return lines + _format_section("faults:", [str(problem) for problem in problems])


def _format_section(title: str, items: Sequence[str]) -> list[str]:
    return [f"{title if index == 0 else '':<15}{item}" for index, item in enumerate(items)]


def _format_cell(value: str | list[str] | None) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return value or "-"
