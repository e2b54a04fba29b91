"""``detcore experiment pause|resume|cancel|kill`` and ``detcore trial cancel|kill``."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from detcore.cli._completion import EXPERIMENT_ID, TRIAL_ID
from detcore.cli._output import count_of, format_bytes, print_line
from detcore.cli._records import master_option, open_client, open_records

if TYPE_CHECKING:
    from detcore.cli._context import CliContext
    from detcore.database import Database
    from detcore.types import Control

__all__ = ["cancel", "cancel_trial", "delete", "kill", "kill_trial", "pause", "resume"]

_POLL_S = 0.2
_DOING = {"pause": "pausing", "cancel": "canceling", "kill": "killing"}
_id = click.argument("experiment_id", type=EXPERIMENT_ID, metavar="EXPERIMENT_ID")
_trial_id = click.argument("trial_id", type=TRIAL_ID, metavar="TRIAL_ID")
_no_wait = click.option("--no-wait", is_flag=True, help="Return when the runner was asked.")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_EXAMPLES = """
\b
Examples:
  detcore experiment delete 3 --dry-run
  detcore experiment delete 3 --yes
"""


@click.command()
@_id
@_no_wait
@_json
@master_option
@click.pass_obj
def pause(obj: CliContext, experiment_id: int, no_wait: bool, as_json: bool) -> None:
    """Let all trials checkpoint and end; continue later with resume."""
    _control(obj, experiment_id, "pause", no_wait=no_wait, as_json=as_json)


@click.command()
@_id
@_no_wait
@_json
@master_option
@click.pass_obj
def cancel(obj: CliContext, experiment_id: int, no_wait: bool, as_json: bool) -> None:
    """Let all trials checkpoint and end, for good."""
    _control(obj, experiment_id, "cancel", no_wait=no_wait, as_json=as_json)


@click.command()
@_id
@_no_wait
@_json
@master_option
@click.pass_obj
def kill(obj: CliContext, experiment_id: int, no_wait: bool, as_json: bool) -> None:
    """End all trials at once, without a checkpoint."""
    _control(obj, experiment_id, "kill", no_wait=no_wait, as_json=as_json)


@click.command("cancel")
@_trial_id
@_json
@master_option
@click.pass_obj
def cancel_trial(obj: CliContext, trial_id: int, as_json: bool) -> None:
    """Let a trial checkpoint and end, for good; the others of its search continue."""
    _control_trial(obj, trial_id, "cancel", as_json=as_json)


@click.command("kill")
@_trial_id
@_json
@master_option
@click.pass_obj
def kill_trial(obj: CliContext, trial_id: int, as_json: bool) -> None:
    """End a trial at once, without a checkpoint; the others of its search continue."""
    _control_trial(obj, trial_id, "kill", as_json=as_json)


@click.command()
@_id
@click.option("--slots", type=click.IntRange(min=1), metavar="N", help="As in detcore run.")
@click.option("--max-slots", type=click.IntRange(min=1), metavar="N", help="As in detcore run.")
@_json
@master_option
@click.pass_context
def resume(
    ctx: click.Context,
    experiment_id: int,
    slots: int | None,
    max_slots: int | None,
    as_json: bool,
) -> None:
    """Continue an experiment in this terminal: detcore run --resume."""
    from detcore.cli._run import run

    obj: CliContext = ctx.obj
    ctx.invoke(
        run, resume=experiment_id, slots=slots, max_slots=max_slots, as_json=as_json, settings=(),
        quiet=False, verbose=False,
        master=obj.master,
    )  # fmt: skip


def _control(
    obj: CliContext,
    experiment_id: int,
    what: str,
    *,
    no_wait: bool,
    as_json: bool,
) -> None:
    if obj.master is not None:
        _control_at(obj.master, experiment_id, what, as_json=as_json)
        return
    from detcore.runner import control_experiment
    from detcore.types import Control

    control = Control(what)
    with obj.open_database() as database:
        was_asked = control_experiment(
            experiment_id, control, database=database, environment=obj.environment
        )
        if was_asked and not no_wait:
            if not as_json:
                click.echo(f"{_DOING[what]} experiment {experiment_id} ...", err=True)
            _wait(database, obj, experiment_id, control)
        state = database.get_experiment(experiment_id).state.value
    if as_json:
        answer: dict[str, Any] = {"experiment_id": experiment_id, "state": state}
        click.echo(json.dumps(answer))
    elif was_asked and no_wait:
        click.echo(f"experiment {experiment_id}: its runner was asked to {what}")
    else:
        click.echo(f"experiment {experiment_id}: {state.lower()}")
        if state == "PAUSED":
            click.echo(f"go on with it:  detcore experiment resume {experiment_id}")


def _control_trial(obj: CliContext, trial_id: int, what: str, *, as_json: bool) -> None:
    if obj.master is not None:
        from detcore.cli._run_remote import control_trial_remotely

        experiment_id, was_asked = control_trial_remotely(obj.master, trial_id, what)
    else:
        from detcore.runner import control_trial

        with obj.open_database() as database:
            experiment_id = database.get_trial(trial_id).experiment_id
            was_asked = control_trial(
                trial_id, what, database=database, environment=obj.environment
            )
    if as_json:
        click.echo(json.dumps({"trial_id": trial_id, "has_runner": was_asked}))
    elif was_asked:
        click.echo(f"trial {trial_id}: its runner was asked to {what} it")
    else:
        click.echo(f"trial {trial_id} ends: experiment {experiment_id} continues without it")


def _control_at(master: str, experiment_id: int, what: str, *, as_json: bool) -> None:
    """Ask a server; its runner does it soon."""
    from detcore.cli._run_remote import control_remotely

    state = control_remotely(master, experiment_id, what)
    if as_json:
        click.echo(json.dumps({"experiment_id": experiment_id, "state": state}))
    elif state == "RUNNING":
        click.echo(f"experiment {experiment_id}: its runner was asked to {what}")
    else:
        click.echo(f"experiment {experiment_id}: {state.lower()}")


def _wait(database: Database, obj: CliContext, experiment_id: int, control: Control) -> None:
    """Wait until the runner has ended the trials, or is gone itself."""
    from detcore.runner import settle_experiment

    while True:
        record, is_alive = database.observe_experiment(experiment_id)
        if record.state.value != "RUNNING":
            return
        if is_alive is False:
            settle_experiment(
                experiment_id, control=control, database=database, environment=obj.environment
            )
            return
        time.sleep(_POLL_S)


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
