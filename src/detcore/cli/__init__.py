"""The `detcore` command, and helpers for the commands of plugins.

Names are imported on first use, because ``detcore --help`` needs few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.cli.cli_context import CliContext
from detcore.cli.main_command import main
from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.cli.checkpoint_store import survey_checkpoints
    from detcore.cli.command_groups import CommandGroup
    from detcore.cli.log_commands import last_lines
    from detcore.cli.output import (
        Column,
        format_csv_cell,
        format_options,
        make_console,
        make_table,
        print_csv,
        print_fields,
        print_json,
        print_line,
        print_table,
        printable,
    )
    from detcore.cli.record_access import (
        master_option,
        open_client,
        open_records,
        uuid_shortener,
    )
    from detcore.cli.shell_completion import EXPERIMENT_ID, TRIAL_ID
    from detcore.cli.user_commands import password_option, read_new_password

__all__ = [
    "EXPERIMENT_ID",
    "TRIAL_ID",
    "CliContext",
    "Column",
    "CommandGroup",
    "format_csv_cell",
    "format_options",
    "last_lines",
    "main",
    "make_console",
    "make_table",
    "master_option",
    "open_client",
    "open_records",
    "password_option",
    "print_csv",
    "print_fields",
    "print_json",
    "print_line",
    "print_table",
    "printable",
    "read_new_password",
    "survey_checkpoints",
    "uuid_shortener",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "checkpoint_store": "survey_checkpoints",
        "shell_completion": "EXPERIMENT_ID TRIAL_ID",
        "command_groups": "CommandGroup",
        "log_commands": "last_lines",
        "output": (
            "Column format_csv_cell format_options make_console make_table "
            "print_csv print_fields print_json print_line print_table printable"
        ),
        "record_access": "master_option open_client open_records uuid_shortener",
        "user_commands": "password_option read_new_password",
    },
)
