"""``detcore help`` and ``detcore completion``: help texts and shell completion."""

from __future__ import annotations

import click

_EXAMPLES = """
\b
Examples:
  detcore completion bash >> ~/.bashrc
  detcore completion zsh >> ~/.zshrc
  detcore completion fish > ~/.config/fish/completions/detcore.fish
"""


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


@click.command(epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete commands and options."""
    from click.shell_completion import get_completion_class

    from detcore.cli._main import main

    kind = get_completion_class(shell)
    assert kind is not None  # of all choices
    click.echo(kind(main, {}, "detcore", "_DETCORE_COMPLETE").source())
