"""``detcore ui``: the page, for the person who typed the command."""

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


# `webbrowser` offers them where there is no desktop; they would take the terminal.
_IN_A_TERMINAL = frozenset({"www-browser", "w3m", "lynx", "links", "elinks"})
_EXAMPLES = """
\b
Examples:
  detcore ui
  detcore ui --no-browser
"""


@click.command(epilog=_EXAMPLES)
@click.option("--no-browser", is_flag=True, help="Print the link, and open no browser.")
@click.pass_obj
def ui(obj: CliContext, /, no_browser: bool) -> None:
    """Open the page of the records of this home in a browser.

    The page is for you alone: it listens on this machine, on a free port, and opens with a link
    that is good once. There is no user to create; Ctrl-C ends it, and nothing of it is kept. For
    other people, or other machines, there is detcore serve.
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
            click.echo(f"The page of the records in {obj.environment.home}, for one browser:\n")
            click.echo(f"  {link}\n\nPress Ctrl-C to end it.")
            if not no_browser:
                _open_browser(stack.enter_context(_kept_in_file(link)))

        with contextlib.suppress(KeyboardInterrupt):
            serve(settings, listener, announce, visit=visit)
        click.echo("The page has ended.")


@contextlib.contextmanager
def _kept_in_file(link: str) -> Iterator[Path]:
    """Write a file that leads to the link, which only this user can read.

    Other users of the machine can see the arguments of a browser's process: they get the file's
    name, not the link.
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
        return  # the link is in the terminal
    if getattr(browser, "basename", "") not in _IN_A_TERMINAL:
        threading.Thread(target=browser.open, args=[path.as_uri()], daemon=True).start()
