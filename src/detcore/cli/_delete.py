"""``detcore experiment delete``: remove an experiment, its trials and their checkpoints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from detcore.cli._completion import EXPERIMENT_ID
from detcore.cli._output import count_of, format_bytes, print_line
from detcore.cli._records import master_option, open_client, open_records

if TYPE_CHECKING:
    from detcore.cli._context import CliContext

__all__ = ["delete"]

_EXAMPLES = """
\b
Examples:
  detcore experiment delete 3 --dry-run
  detcore experiment delete 3 --yes
"""


@click.command(epilog=_EXAMPLES)
@click.argument("experiment_id", type=EXPERIMENT_ID, metavar="EXPERIMENT_ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@master_option
@click.pass_obj
def delete(obj: CliContext, experiment_id: int, yes: bool, dry_run: bool) -> None:
    """Delete an experiment: its checkpoints' files, its trials, their metrics and logs.

    Refused while it runs, while a model of the registry has one of its checkpoints, and while
    trials of another experiment start from one. An interrupted deletion can be repeated.
    """
    from detcore.experimental._control import check_deletable

    with open_records(obj) as database:
        record = database.get_experiment(experiment_id)
        checkpoints = check_deletable(database, experiment_id)
        held = [found for found in checkpoints if found.state != "DELETED"]
        size = sum(found.size_bytes or 0 for found in held)
        num_trials = database.count_trials().get(experiment_id, 0)
        print_line(
            f"experiment {experiment_id} ({record.name}): {count_of(num_trials, 'trial')}, "
            f"{count_of(len(held), 'checkpoint')} with {format_bytes(size)}"
        )
        for url in sorted({found.storage_url for found in held}):
            print_line(f"  in {url}")
        if dry_run:
            print_line("nothing was deleted (--dry-run)")
            return
        _confirm(f"Delete experiment {experiment_id} and all of this?", yes=yes)
        with open_client(obj) as client:
            client.get_experiment(experiment_id).delete()
    print_line(f"deleted experiment {experiment_id}")


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            "there is no terminal to ask on; pass --yes to delete without asking"
        )
    click.confirm(question, abort=True)
