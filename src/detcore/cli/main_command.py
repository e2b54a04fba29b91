"""The top-level command: its subcommands, and the handling of their errors.

A subcommand's module is imported when the subcommand runs: ``detcore --help`` imports click and
nothing else of weight.
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
  0    done
  1    an error
  2    the command line or the experiment file is wrong
  75   come back: interrupted after a checkpoint, can be resumed
  130  interrupted

\b
Environment variables:
  DETCORE_HOME             where records and default checkpoints live
  DETCORE_DB               SQLAlchemy URL of the record store
  DETCORE_MASTER           URL of the server that commands and the client use
  DETCORE_PLUGINS          the only plugins to use, separated by commas
  DETCORE_DISABLE_PLUGINS  plugins to leave out, separated by commas
"""
_COMPLETION_EXAMPLES = """
\b
Examples:
  detcore completion bash >> ~/.bashrc
  detcore completion zsh >> ~/.zshrc
  detcore completion fish > ~/.config/fish/completions/detcore.fish
"""
COMMANDS = {
    "run": Lazy(
        "detcore.cli.run_command:run", "Train an experiment in this terminal, or continue one."
    ),
    "launch": Lazy(
        "detcore.cli.launch_command:launch", "Run a command in several worker processes."
    ),
    "experiment": Lazy(
        "detcore.cli.experiment_commands:experiment_group",
        "List, show and plot experiments; pause, resume, cancel them.",
    ),
    "trial": Lazy(
        "detcore.cli.trial_commands:trial_group",
        "Show the metrics, plots and logs of a trial, or end it.",
    ),
    "logs": Lazy(
        "detcore.cli.log_commands:experiment_logs",
        "Show the output of the trials of an experiment.",
    ),
    "top": Lazy(None, "Follow the trials that run: steps, speed, last metrics."),
    "diverge": Lazy(None, "Say where two runs part: the first step that differs, and why."),
    "replay": Lazy(None, "Train steps of a run again, and compare them with the run."),
    "report": Lazy(None, "Write the records of an experiment into one HTML file."),
    "tensorboard": Lazy(None, "Start TensorBoard on the event files of experiments."),
    "checkpoint": Lazy(
        "detcore.cli.checkpoint_commands:checkpoint_group",
        "List, download, verify and delete checkpoints.",
    ),
    "model": Lazy(
        "detcore.cli.model_commands:model_group",
        "Register checkpoints as numbered versions of models.",
    ),
    "ui": Lazy(None, "Show the records in a browser."),
    "serve": Lazy(None, "Serve records over HTTP and run submitted experiments."),
    "user": Lazy(
        "detcore.cli.user_commands:user_group", "Manage the users of a server; log in to one."
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
        "List and describe plugins, find faults, begin a new one.",
    ),
    "doctor": Lazy(
        "detcore.cli.plugin_commands:find_faults", "Import every plugin and report each fault."
    ),
    "completion": Lazy(
        "detcore.cli.main_command:completion",
        "Print the script that completes commands in a shell.",
    ),
    "help": Lazy(
        "detcore.cli.main_command:help_command", "Show the help of a command, as its --help does."
    ),
}
# Other names that are understood, and not listed.
ALIASES = {"plugin": "plugins"}
DISTRIBUTION_OF_COMMAND: dict[str, str] = {
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
"""Commands of detcore's own distributions: only that distribution may register the command.

It registers those of a built-in group as a `click.Group` of that name.
"""


class _Main(CommandGroup):
    """A group whose commands are imported by name, and whose errors are one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return detcore's commands, then those that other plugins declare."""
        return [*dict.fromkeys([*COMMANDS, *_plugins_of(ctx).declared_commands()])]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a built-in command, else ask the plugins."""
        name = ALIASES.get(cmd_name, cmd_name)
        lazy = COMMANDS.get(name)
        if lazy is None:
            return _plugins_of(ctx).command(cmd_name)
        if lazy.target is not None:
            return import_command(lazy)
        return self.find_elsewhere(ctx, name, lazy)

    def find_elsewhere(self, ctx: click.Context, path: str, lazy: Lazy) -> click.Command:
        """Return a command of another distribution, or one that says how to get it.

        Args:
            ctx: The context of the group that lists it.
            path: The words that call it, without ``detcore``.
            lazy: Its line in the group.
        """
        plugins = _plugins_of(ctx.find_root())
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
        hint = self.hint(ctx, name, dict.fromkeys([*COMMANDS, *_plugins_of(ctx).commands()]))
        return f"no command is called {name!r}.\n{hint}"

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands from the table: their modules are not needed for it."""
        plugins = _plugins_of(ctx)
        declared = plugins.declared_commands()
        elsewhere = [name for name, lazy in COMMANDS.items() if lazy.target is None]
        missing = [name for name in elsewhere if name not in declared]
        ours = [(name, lazy.summary) for name, lazy in COMMANDS.items() if name not in missing]
        others = [
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
            "Commands of plugins": others,
            "Commands that are not installed": unusable,
        }
        for title, lines in sections.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error that detcore raised on purpose needs no traceback."""
        try:
            return super().invoke(ctx)
        except DetcoreError as error:
            from detcore.cli.output import printable

            click.echo(printable(f"error: {error}"), err=True)
            ctx.exit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERROR)
        except UnicodeEncodeError as error:
            if not error.reason.startswith("surrogates"):
                raise
            click.echo(f"error: {error.object[:80]!r} is not UTF-8, and is no name here.", err=True)
            ctx.exit(EXIT_USAGE)
        except FileNotFoundError:
            if _has_working_directory():
                raise
            text = "error: the working directory was deleted. Change to another one: cd ~"
            click.echo(text, err=True)
            ctx.exit(EXIT_ERROR)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            # If the interrupt left exec() of a text, with which modules such as dataclasses make
            # functions, ``python -m`` ends by SIGINT, whatever the exit code, until a next exec().
            exec("")
            ctx.exit(EXIT_INTERRUPTED)


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _plugins_of(ctx: click.Context) -> PluginManager:
    """Return the manager for looking up commands, made on first use.

    ``--help`` is answered before `main` runs, so there may be no `CliContext` yet.
    """
    if "plugins" not in ctx.meta:
        obj = ctx.obj if isinstance(ctx.obj, CliContext) else _make_context(ctx.params)
        ctx.meta["plugins"] = obj.plugin_manager()
    manager: PluginManager = ctx.meta["plugins"]
    return manager


def _make_context(params: dict[str, Any]) -> CliContext:
    from detcore.environment import read_environment

    allowed: str | None = params.get("plugins")
    return CliContext(
        environment=read_environment(),
        disabled=frozenset(params.get("no_plugin") or ()),
        allowed=None if allowed is None else _names(allowed),
        reserved=_owners(),
    )


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def _owners() -> dict[str, str]:
    """Return which distribution may register each of detcore's commands; "": it is built in."""
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
    help="Print the version and stop.",
)
@click.option(
    "--no-plugin",
    type=PLUGIN_NAME,
    multiple=True,
    metavar="NAME",
    is_eager=True,
    help="Leave a plugin out; may be given again.",
)
@click.option(
    "--plugins",
    metavar="NAME,...",
    is_eager=True,
    help="The only plugins to use, besides the built-in one.",
)
@click.pass_context
def main(ctx: click.Context, no_plugin: tuple[str, ...], plugins: str | None) -> None:
    """Train models as trials: with metrics, checkpoints and exact resume, and no cluster."""
    ctx.obj = _make_context({"no_plugin": no_plugin, "plugins": plugins})


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


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_command(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, as its --help does."""
    found = ctx.find_root()
    for word in words:
        group = found.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"'{found.command_path}' has no commands of its own", ctx=found)
        _, command, _ = group.resolve_command(found, [word])
        assert command is not None  # an unknown one is an error
        found = click.Context(command, info_name=word, parent=found)
    click.echo(found.get_help())


@click.command(epilog=_COMPLETION_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete commands and options."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # of all choices
    click.echo(kind(main, {}, "detcore", "_DETCORE_COMPLETE").source())
