"""Command ``detcore ui``."""

from __future__ import annotations

import contextlib
import html
import os
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from detcore.cli import CliContext


# Text browsers that `webbrowser` offers without a desktop. They would occupy the terminal.
_IN_A_TERMINAL = frozenset({"www-browser", "w3m", "lynx", "links", "elinks"})
_EXAMPLES = """
\b
Examples:
  detcore ui
  detcore ui --no-browser
"""


@click.command(epilog=_EXAMPLES)
@click.option("--no-browser", is_flag=True, help="Print the link without opening a browser.")
@click.pass_obj
def ui(obj: CliContext, /, no_browser: bool) -> None:
    """Show the records of this home in a browser.

    The pages are only for you. They are served on a free port of this machine and open with a
    one-time link. You do not need to create a user. Ctrl-C ends the command and leaves nothing
    behind. For other users or machines, use detcore serve.
    """
    from detcore_server.commands.server_process import serve
    from detcore_server.server_settings import ServerSettings
    from detcore_server.users.one_time_link import Visit

    visit = Visit()
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
        settings = ServerSettings(
            environment=obj.environment,
            plugins=obj.plugin_manager(),
            port=listener.getsockname()[1],
            log_level="warning",
        )
        link = f"{settings.url}/ui/open?link={visit.link}"

        def announce() -> None:
            click.echo(f"Open the records in {obj.environment.home} with this one-time link:\n")
            click.echo(f"  {link}\n\nPress Ctrl-C to stop.")
            if not no_browser:
                _open_browser(stack.enter_context(_write_link_file(link)))

        with contextlib.suppress(KeyboardInterrupt):
            serve(settings, listener, announce, visit=visit)
        click.echo("Stopped.")


@contextlib.contextmanager
def _write_link_file(link: str) -> Iterator[Path]:
    """Write a file that redirects to the link and that only this user can read.

    Other users of the machine can see the arguments of the browser process. They see the file name
    instead of the link.
    """
    with tempfile.TemporaryDirectory(prefix="detcore-ui-") as folder:
        path = Path(folder) / "open.html"
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(
                '<!DOCTYPE html><meta charset="utf-8"><title>detcore</title>'
                f'<meta http-equiv="refresh" content="0;url={html.escape(link)}">'
                f'<a href="{html.escape(link)}">Open the page</a>\n'
            )
        yield path


def _open_browser(path: Path) -> None:
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return  # the terminal shows the link
    if getattr(browser, "basename", "") not in _IN_A_TERMINAL:
        threading.Thread(target=browser.open, args=[path.as_uri()], daemon=True).start()
