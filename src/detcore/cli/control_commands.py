"""``detcore experiment pause|resume|cancel|kill|wait|delete``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from detcore.cli.output import (
    Format,
    confirm,
    count_of,
    dry_run_option,
    format_options,
    json_option,
    print_data,
    print_line,
    printable,
    yes_option,
)
from detcore.cli.record_access import master_option, open_client, open_records
from detcore.cli.shell_completion import experiment_argument
from detcore.record_descriptions import describe_experiment, describe_state, format_bytes

if TYPE_CHECKING:
    from detcore.cli.cli_context import CliContext


_POLL_INTERVAL_S = 0.2
_DOING = {"pause": "pausing", "cancel": "canceling", "kill": "killing"}
_no_wait = click.option(
    "--no-wait", is_flag=True, help="Return without waiting for the experiment to end."
)
_EXAMPLES = """
\b
Examples:
  detcore experiment delete 3 --dry-run
  detcore experiment delete 3 --yes
"""
_WAIT_POLL_S = 0.5
_EXIT_TIMEOUT = 124  # as of timeout(1)
_EXIT_AGAIN = 75
_EXIT_CODES = {"COMPLETED": 0, "PAUSED": _EXIT_AGAIN, "RUNNING": _EXIT_AGAIN}
_WAIT_EXAMPLES = """
\b
Examples:
  detcore experiment wait 3 && detcore report 3
  detcore experiment wait 3 --timeout 3600

\b
Exit codes:
  0    completed
  1    failed or canceled
  75   paused, or its process has exited; resume it
  124  still running after the timeout
"""


def _make_command(what: str, summary: str) -> click.Command:
    """Return a command that sends a request to the runner of an experiment."""

    @click.command(what, help=summary)
    @experiment_argument
    @_no_wait
    @json_option
    @master_option
    def command(obj: CliContext, experiment_id: int, no_wait: bool, as_json: bool) -> None:
        _send_control(obj, experiment_id, what, no_wait=no_wait, as_json=as_json)

    return command


pause = _make_command(
    "pause", "Checkpoint and stop all trials. Continue with 'detcore experiment resume'."
)
cancel = _make_command("cancel", "Checkpoint and end all trials for good.")
kill = _make_command("kill", "End all trials immediately, without a checkpoint.")


@click.command()
@experiment_argument
@click.option("--slots", type=click.IntRange(min=1), metavar="N", help="As in detcore run.")
@click.option("--max-slots", type=click.IntRange(min=1), metavar="N", help="As in detcore run.")
@json_option
@master_option
def resume(
    obj: CliContext,
    experiment_id: int,
    slots: int | None,
    max_slots: int | None,
    as_json: bool,
) -> None:
    """Resume an experiment in this terminal, as 'detcore run --resume' does."""
    from detcore.cli.run_command import run

    click.get_current_context().invoke(
        run,
        resume=experiment_id,
        slots=slots,
        max_slots=max_slots,
        as_json=as_json,
        master=obj.master,
    )


def _send_control(
    obj: CliContext, experiment_id: int, what: str, *, no_wait: bool, as_json: bool
) -> None:
    is_here = obj.master is None
    with open_client(obj) as client:
        experiment = client.get_experiment(experiment_id)
        getattr(experiment, what)()
        state = experiment.state.value
        if state == "RUNNING" and is_here and not no_wait:
            if not as_json:
                click.echo(f"{_DOING[what]} experiment {experiment_id} ...", err=True)
            _wait_for_runner(obj, experiment_id, getattr(experiment, what))
            state = experiment.state.value
    if as_json:
        click.echo(json.dumps({"experiment_id": experiment_id, "state": state}))
    elif state == "RUNNING":
        click.echo(f"experiment {experiment_id}: sent '{what}' to its runner")
    else:
        click.echo(f"experiment {experiment_id}: {state.lower()}")
        if state == "PAUSED" and is_here:
            click.echo(f"resume with:  detcore experiment resume {experiment_id}")


def _wait_for_runner(obj: CliContext, experiment_id: int, request: Callable[[], None]) -> None:
    """Wait until the runner has ended the trials. Repeat the request if the runner has exited."""
    with open_records(obj) as database:
        while True:
            record, is_alive = database.observe_experiment(experiment_id)
            if record.state.value != "RUNNING":
                return
            if not is_alive:
                request()
            time.sleep(_POLL_INTERVAL_S)


@click.command(epilog=_EXAMPLES)
@experiment_argument
@yes_option
@dry_run_option
@master_option
def delete(obj: CliContext, experiment_id: int, yes: bool, dry_run: bool) -> None:
    """Delete an experiment with its checkpoints, trials, metrics and logs.

    An experiment cannot be deleted while it runs, while one of its checkpoints is in the model
    registry, or while another experiment starts trials from one of its checkpoints. An interrupted
    deletion can be repeated.
    """
    from detcore.client.local_control import check_deletable

    with open_records(obj) as database:
        record = database.get_experiment(experiment_id)
        checkpoints = check_deletable(database, experiment_id)
        stored = [checkpoint for checkpoint in checkpoints if checkpoint.state != "DELETED"]
        size = sum(checkpoint.size_bytes or 0 for checkpoint in stored)
        num_trials = database.count_trials().get(experiment_id, 0)
        print_line(
            f"experiment {experiment_id} ({record.name}): {count_of(num_trials, 'trial')}, "
            f"{count_of(len(stored), 'checkpoint')} with {format_bytes(size)}"
        )
        for url in sorted({checkpoint.storage_url for checkpoint in stored}):
            print_line(f"  in {url}")
        if dry_run:
            print_line("nothing was deleted (--dry-run)")
            return
        confirm(f"Delete experiment {experiment_id} with its checkpoints and records?", yes=yes)
        with open_client(obj) as client:
            client.get_experiment(experiment_id).delete()
    print_line(f"deleted experiment {experiment_id}")


@click.command(epilog=_WAIT_EXAMPLES)
@experiment_argument
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), metavar="SECONDS",
    help="Maximum time to wait.",
)  # fmt: skip
@format_options
@master_option
def wait(
    obj: CliContext,
    experiment_id: int,
    timeout_s: float | None,
    form: Format,
) -> None:
    """Wait until an experiment ends. The exit code shows how it ended."""
    until = None if timeout_s is None else time.monotonic() + timeout_s
    with open_records(obj) as database:
        while True:
            record, is_alive = database.observe_experiment(experiment_id)
            timed_out = until is not None and time.monotonic() >= until
            if not is_alive or timed_out:
                break
            remaining_s = _WAIT_POLL_S if until is None else max(0.0, until - time.monotonic())
            time.sleep(min(_WAIT_POLL_S, remaining_s))
    with open_records(obj, is_again=True) as database:  # includes the workers' last reports
        count = database.count_trials().get(experiment_id, 0)
        row = describe_experiment(database, database.get_experiment(experiment_id), count)
    code = _EXIT_CODES.get(record.state.value, 1)
    if is_alive:
        code = _EXIT_TIMEOUT
    if not print_data(form, row, [row]):
        state = describe_state(record.state.value, is_alive=is_alive)
        error = f": {record.error}" if record.error else ""
        still = " still" if code == _EXIT_TIMEOUT else ""
        click.echo(printable(f"experiment {experiment_id} is{still} {state}{error}"), err=True)
    raise SystemExit(code)
