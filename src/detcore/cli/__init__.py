"""The `detcore` command."""

from detcore.cli._context import CliContext
from detcore.cli._main import main

__all__ = ["CliContext", "main"]
