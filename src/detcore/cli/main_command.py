"""The top-level command: its subcommands, and error handling.

A subcommand's module is imported when the subcommand runs, so ``detcore --help`` is fast.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from detcore.cli.cli_context import CliContext
from detcore.cli.command_groups import CommandGroup, Lazy, import_command
from detcore.cli.shell_completion import PLUGIN_NAME
from detcore.contract.errors import ConfigError, DetcoreError, RunError
from detcore.optional_distributions import describe_missing, install_command
from detcore.version import __version__

if TYPE_CHECKING:
    from detcore.plugins import PluginEntry, PluginManager


EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
_EPILOG = """
\b
Exit codes:
  0    success
  1    error
  2    invalid command line or experiment file
  75   interrupted after a checkpoint; can be resumed
  130  interrupted

\b
Environment variables:
  DETCORE_HOME             directory of records and default checkpoints
  DETCORE_DB               SQLAlchemy URL of the record store
  DETCORE_MASTER           URL of the server that commands and the client use
  DETCORE_PLUGINS          comma-separated list of the only plugins to use
  DETCORE_DISABLE_PLUGINS  comma-separated list of plugins to disable
"""
_COMPLETION_EXAMPLES = """
\b
Examples:
  detcore completion bash >> ~/.bashrc
  detcore completion zsh >> ~/.zshrc
  detcore completion fish > ~/.config/fish/completions/detcore.fish
"""
COMMANDS = {
    "run": Lazy("detcore.cli.run_command:run", "Train or resume an experiment in this terminal."),
    "launch": Lazy(
        "detcore.cli.launch_command:launch", "Run a command in several worker processes."
    ),
    "experiment": Lazy(
        "detcore.cli.experiment_commands:experiment_group",
        "List, show and plot experiments; pause, resume, cancel them.",
    ),
    "trial": Lazy(
        "detcore.cli.trial_commands:trial_group",
        "Show the metrics, plots and logs of a trial; end it.",
    ),
    "logs": Lazy(
        "detcore.cli.log_commands:experiment_logs",
        "Show the output of the trials of an experiment.",
    ),
    "top": Lazy(None, "Monitor running trials: steps, speed, last metrics."),
    "check-resume": Lazy(None, "Check whether a killed and resumed run is exact."),
    "diverge": Lazy(None, "Find the first step at which two runs differ, and the cause."),
    "replay": Lazy(None, "Repeat steps of a run, and compare them with the run."),
    "report": Lazy(None, "Write a report of an experiment as one HTML file."),
    "tensorboard": Lazy(None, "Start TensorBoard on the event files of experiments."),
    "checkpoint": Lazy(
        "detcore.cli.checkpoint_commands:checkpoint_group",
        "List, download, verify, repair and delete checkpoints.",
    ),
    "model": Lazy(
        "detcore.cli.model_commands:model_group",
        "Register checkpoints as numbered versions of models.",
    ),
    "ui": Lazy(None, "Show the records in a browser."),
    "serve": Lazy(None, "Serve records over HTTP and run submitted experiments."),
    "user": Lazy(
        "detcore.cli.user_commands:user_group", "Manage the users of a server; log in to a server."
    ),
    "database": Lazy(None, "Back up, restore and upgrade the record store."),
    "storage": Lazy(None, "Test a checkpoint storage."),
    "config": Lazy(
        "detcore.cli.config_commands:config_group", "Check, show and describe experiment files."
    ),
    "migrate": Lazy(None, "Rewrite code and experiment files written for Determined."),
    "data": Lazy(None, "Inspect the data that a trial was trained on."),
    "plugins": Lazy(
        "detcore.cli.plugin_commands:plugins_group",
        "List and check plugins; create a new plugin.",
    ),
    "doctor": Lazy(
        "detcore.cli.plugin_commands:find_faults", "Import every plugin and report each fault."
    ),
    "completion": Lazy(
        "detcore.cli.main_command:completion",
        "Print the script for shell completion.",
    ),
    "help": Lazy("detcore.cli.main_command:help_command", "Show the help of a command."),
}
# Alternative names that help does not list.
ALIASES = {"plugin": "plugins"}
DISTRIBUTION_OF_COMMAND: dict[str, str] = {
    "check-resume": "detcore-replay",
    "data": "detcore-replay",
    "database": "detcore-server",
    "diverge": "detcore-replay",
    "experiment plot": "detcore-report",
    "migrate": "detcore-determined",
    "plugins new": "detcore-testing",
    "replay": "detcore-replay",
    "report": "detcore-report",
    "serve": "detcore-server",
    "storage": "detcore-storage",
    "tensorboard": "detcore-report",
    "top": "detcore-report",
    "ui": "detcore-server",
    "user activate": "detcore-server",
    "user create": "detcore-server",
    "user deactivate": "detcore-server",
    "user list": "detcore-server",
    "user password": "detcore-server",
}
"""Commands that only the given distribution may register.

It registers commands of a built-in group as a `click.Group` with the name of the group.
"""


class _Main(CommandGroup):
    """The top-level group. It imports commands on use and prints errors without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return detcore's commands, followed by the commands of other plugins."""
        return [*dict.fromkeys([*COMMANDS, *_get_plugins(ctx).declared_commands()])]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a built-in command, or a command of a plugin."""
        name = ALIASES.get(cmd_name, cmd_name)
        lazy = COMMANDS.get(name)
        if lazy is None:
            return _get_plugins(ctx).command(cmd_name)
        if lazy.target is not None:
            return import_command(lazy)
        return self.find_elsewhere(ctx, name, lazy)

    def find_elsewhere(self, ctx: click.Context, path: str, lazy: Lazy) -> click.Command:
        """Return a command of another distribution, or a command that explains how to install it.

        Args:
            ctx: The context of the group that lists the command.
            path: The words of the command without ``detcore``.
            lazy: The entry in the group.
        """
        plugins = _get_plugins(ctx.find_root())
        name, _, inner = path.partition(" ")
        owner = DISTRIBUTION_OF_COMMAND[path]
        command = plugins.get_distribution_command(owner, name)
        if inner:
            command = command.get_command(ctx, inner) if isinstance(command, click.Group) else None
        if command is None:
            return missing_command(path, lazy.summary, plugins.declaring_plugin(owner, name))
        return command

    def explain_unknown(self, ctx: click.Context, name: str) -> str:
        """Return the message for an unknown command."""
        hint = self.suggest_command(
            ctx, name, dict.fromkeys([*COMMANDS, *_get_plugins(ctx).commands()])
        )
        return f"unknown command {name!r}.\n{hint}"

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands without importing their modules."""
        plugins = _get_plugins(ctx)
        declared = plugins.declared_commands()
        elsewhere = [name for name, lazy in COMMANDS.items() if lazy.target is None]
        missing = [name for name in elsewhere if name not in declared]
        ours = [(name, lazy.summary) for name, lazy in COMMANDS.items() if name not in missing]
        plugin_commands = [
            (name, f"(from {entry.distribution})")
            for name, entry in declared.items()
            if name not in COMMANDS
        ]
        unusable = [
            (name, explain_missing(name, plugins.declaring_plugin(owner, name)))
            for name, owner in DISTRIBUTION_OF_COMMAND.items()
            if name in missing
        ]
        sections = {
            "Commands": ours,
            "Commands of plugins": plugin_commands,
            "Commands that are not installed": unusable,
        }
        for title, lines in sections.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and print errors of detcore without a traceback."""
        try:
            return super().invoke(ctx)
        except DetcoreError as error:
            from detcore.cli.output import printable

            click.echo(printable(f"{_choose_prefix(error)}{error}"), err=True)
            ctx.exit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERROR)
        except UnicodeEncodeError as error:
            if not error.reason.startswith("surrogates"):
                raise
            click.echo(f"error: argument {error.object[:80]!r} is not valid UTF-8", err=True)
            ctx.exit(EXIT_USAGE)
        except FileNotFoundError:
            if _has_working_directory():
                raise
            text = "error: the working directory was deleted.\nChange the directory: cd ~"
            click.echo(text, err=True)
            ctx.exit(EXIT_ERROR)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            # If the interrupt left an exec() of a string (dataclasses uses it), ``python -m`` ends
            # with SIGINT regardless of the exit code, unless exec() is called again.
            exec("")
            ctx.exit(EXIT_INTERRUPTED)


def _choose_prefix(error: DetcoreError) -> str:
    """Return the prefix of an error; empty for a report, in which each mistake has a prefix."""
    if not isinstance(error, ConfigError):
        return "error: "
    from detcore.config import ExperimentFileError

    return "" if isinstance(error, ExperimentFileError) else "error: "


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _get_plugins(ctx: click.Context) -> PluginManager:
    """Return the manager for looking up commands."""
    return _get_context(ctx).plugin_manager()


def _get_context(ctx: click.Context) -> CliContext:
    """Return the settings, and create them on first use, which may be before `main` runs."""
    if not isinstance(ctx.obj, CliContext):
        ctx.obj = _make_context(ctx.params)
    return ctx.obj


def _make_context(params: dict[str, Any]) -> CliContext:
    from detcore.environment import read_environment

    allowed: str | None = params.get("plugins")
    return CliContext(
        environment=read_environment(),
        disabled=frozenset(params.get("no_plugin") or ()),
        allowed=None if allowed is None else _split_names(allowed),
        reserved=_map_owners(),
    )


def _split_names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def _map_owners() -> dict[str, str]:
    """Return the distribution that may register each command, or "" for a built-in command."""
    elsewhere = {path.partition(" ")[0]: name for path, name in DISTRIBUTION_OF_COMMAND.items()}
    return {**dict.fromkeys((*COMMANDS, *ALIASES), ""), **elsewhere}


@click.group(
    cls=_Main,
    lazy_commands=COMMANDS,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(
    __version__,
    message=f"detcore %(version)s (Python {'.'.join(map(str, sys.version_info[:3]))})",
    help="Print the version and exit.",
)
@click.option(
    "--no-plugin",
    type=PLUGIN_NAME,
    multiple=True,
    metavar="NAME",
    is_eager=True,
    help="Disable a plugin (repeatable).",
)
@click.option(
    "--plugins",
    metavar="NAME,...",
    is_eager=True,
    help="Use only these plugins and the built-in plugin.",
)
@click.pass_context
def main(ctx: click.Context, no_plugin: tuple[str, ...], plugins: str | None) -> None:
    """Train models as trials, with metrics, checkpoints and exact resume, without a cluster."""
    context = _get_context(ctx)
    if no_plugin or plugins is not None:
        context.plugin_manager().index()  # warns about unknown names


def explain_missing(name: str, entry: PluginEntry | None) -> str:
    """Return how to make a command of `DISTRIBUTION_OF_COMMAND` available.

    Args:
        name: The command.
        entry: The installed but unusable plugin that declares it, or None if the distribution is
            not installed.
    """
    if entry is None:
        return install_command(DISTRIBUTION_OF_COMMAND[name])
    return f"{entry.state.value}: detcore plugins info {entry.name}"


def missing_command(name: str, summary: str, entry: PluginEntry | None) -> click.Command:
    """Return a command that accepts any arguments and fails with an installation hint.

    Args:
        name: A command of `DISTRIBUTION_OF_COMMAND`.
        summary: One-line help.
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

    def raise_error() -> None:
        raise RunError(message)

    # Without this parameter, click would reject the arguments first.
    words = click.Argument(
        ["words"], nargs=-1, metavar="...", type=click.UNPROCESSED, expose_value=False
    )
    return click.Command(
        name.rpartition(" ")[2],
        callback=raise_error,
        params=[words],
        help=f"{summary}\n\n\b\n{message}",
        short_help=summary,
        context_settings={"ignore_unknown_options": True},
    )


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_command(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, as its --help does."""
    context = ctx.find_root()
    for word in words:
        group = context.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"'{context.command_path}' has no subcommands", ctx=context)
        _, command, _ = group.resolve_command(context, [word])
        assert command is not None  # an unknown command is an error
        context = click.Context(command, info_name=word, parent=context)
    click.echo(context.get_help())


@click.command(epilog=_COMPLETION_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script for shell completion of commands and options."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # click supports all choices
    click.echo(kind(main, {}, "detcore", "_DETCORE_COMPLETE").source())
