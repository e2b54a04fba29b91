"""The `detcore` command, and what the commands of plugins share with it.

Names are imported on first use, because ``detcore --help`` needs few of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from detcore.cli._context import CliContext
from detcore.cli._main import main

if TYPE_CHECKING:
    from detcore.cli._checkpoint_store import survey_checkpoints
    from detcore.cli._completion import EXPERIMENT_ID
    from detcore.cli._logs import last_lines
    from detcore.cli._output import (
        Column,
        choose_format,
        format_options,
        make_console,
        make_table,
        print_csv,
        print_json,
        print_line,
        print_table,
    )
    from detcore.cli._records import master_option, open_records
    from detcore.cli._user import read_new_password

__all__ = [
    "EXPERIMENT_ID",
    "CliContext",
    "Column",
    "choose_format",
    "format_options",
    "last_lines",
    "main",
    "make_console",
    "make_table",
    "master_option",
    "open_records",
    "print_csv",
    "print_json",
    "print_line",
    "print_table",
    "read_new_password",
    "survey_checkpoints",
]

_HOMES = {
    "EXPERIMENT_ID": "_completion",
    "Column": "_output",
    "choose_format": "_output",
    "format_options": "_output",
    "last_lines": "_logs",
    "make_console": "_output",
    "make_table": "_output",
    "master_option": "_records",
    "open_records": "_records",
    "print_csv": "_output",
    "print_json": "_output",
    "print_line": "_output",
    "print_table": "_output",
    "read_new_password": "_user",
    "survey_checkpoints": "_checkpoint_store",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore.cli' has no attribute {name!r}")
    return getattr(importlib.import_module(f"detcore.cli.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
