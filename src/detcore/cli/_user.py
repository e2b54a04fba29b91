"""``detcore user``: the commands that work on the records are in detcore-server."""

from __future__ import annotations

import click

from detcore.cli._groups import CommandGroup, Lazy

_EXAMPLES = """
\b
Examples:
  detcore user create ada --admin
  detcore user create ci --password-stdin < password.txt
  detcore user login https://server:8080 --user ada
  detcore user whoami https://server:8080
"""


@click.group(
    "user",
    cls=CommandGroup,
    lazy_commands={
        "create": Lazy(None, "Add a user; asks for the password."),
        "list": Lazy(None, "List the users."),
        "password": Lazy(None, "Give a user another password, who is then logged out everywhere."),
        "deactivate": Lazy(None, "Stop a user from logging in."),
        "activate": Lazy(None, "Let a user log in again."),
        "login": Lazy(
            "detcore.cli._user_login:log_in",
            "Log in to a server, and keep its token in DETCORE_HOME.",
        ),
        "logout": Lazy(
            "detcore.cli._user_login:log_out", "Revoke the stored token of a server, and delete it."
        ),
        "change-password": Lazy(
            "detcore.cli._user_login:change_password", "Change your own password at a server."
        ),
        "whoami": Lazy(
            "detcore.cli._user_login:whoami", "Show the user that a server recognizes you as."
        ),
    },
    epilog=_EXAMPLES,
)
def user_group() -> None:
    """Manage the users of the server of this record store; log in to a server.

    create, list, password, activate and deactivate work on the records themselves (DETCORE_HOME,
    DETCORE_DB), where the server runs. login, logout, change-password and whoami send a request to
    a server, from anywhere; the default of URL is the variable DETCORE_MASTER.
    """
