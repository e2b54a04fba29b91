"""The `detcore` command, and what commands of plugins use of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.cli._context import CliContext
from detcore.cli._main import main

if TYPE_CHECKING:
    from detcore.cli._user import read_new_password

__all__ = ["CliContext", "main", "read_new_password"]


def __getattr__(name: str) -> object:
    if name != "read_new_password":
        raise AttributeError(f"module 'detcore.cli' has no attribute {name!r}")
    from detcore.cli._user import read_new_password

    return read_new_password


def __dir__() -> list[str]:
    return sorted(__all__)
