"""``detcore experiment wait``: for scripts that continue when an experiment has ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from detcore.cli._completion import EXPERIMENT_ID
from detcore.cli._output import choose_format, format_options, printable
from detcore.cli._records import master_option, open_records
from detcore.describe import describe_experiment, describe_state

if TYPE_CHECKING:
    from detcore.cli._context import CliContext

__all__ = ["wait"]

_POLL_S = 0.5
_EXIT_TIMEOUT = 124  # as of timeout(1)
_EXIT_AGAIN = 75
_EXIT_CODES = {"COMPLETED": 0, "PAUSED": _EXIT_AGAIN, "RUNNING": _EXIT_AGAIN}

_EXAMPLES = """
\b
Examples:
  detcore experiment wait 3 && detcore report 3
  detcore experiment wait 3 --timeout 3600

\b
Exit codes:
  0    completed
  1    failed or canceled
  75   paused, or its process is gone: resume it
  124  it still runs after the time that was given
"""


@click.command(epilog=_EXAMPLES)
@click.argument("experiment_id", type=EXPERIMENT_ID, metavar="EXPERIMENT_ID")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), metavar="SECONDS",
    help="Wait no longer than this.",
)  # fmt: skip
@format_options
@master_option
@click.pass_context
def wait(
    context: click.Context,
    experiment_id: int,
    timeout_s: float | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Wait until an experiment no longer runs; the exit code says how it ended."""
    from detcore.cli._output import print_csv, print_json

    obj: CliContext = context.obj
    form = choose_format(as_json, as_csv)
    until = None if timeout_s is None else time.monotonic() + timeout_s
    with open_records(obj) as database:
        while True:
            # One on another host counts as running: its process cannot be checked from here.
            record, is_alive = database.observe_experiment(experiment_id)
            timed_out = until is not None and time.monotonic() >= until
            if is_alive is False or timed_out:
                break
            left = _POLL_S if until is None else max(0.0, until - time.monotonic())
            time.sleep(min(_POLL_S, left))
    with open_records(obj, is_again=True) as database:  # includes the workers' last reports
        count = database.count_trials().get(experiment_id, 0)
        row = describe_experiment(database, database.get_experiment(experiment_id), count)
    code = _EXIT_CODES.get(record.state.value, 1)
    if is_alive is not False:
        code = _EXIT_TIMEOUT
    if form == "json":
        print_json(row)
    elif form == "csv":
        print_csv([row])
    else:
        host = record.process.host if record.process else None
        state = describe_state(record.state.value, is_alive, host)
        error = f": {record.error}" if record.error else ""
        still = " still" if code == _EXIT_TIMEOUT else ""
        click.echo(printable(f"experiment {experiment_id} is{still} {state}{error}"), err=True)
    context.exit(code)
