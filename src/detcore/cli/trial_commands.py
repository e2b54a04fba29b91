"""``detcore trial``: label, annotate and end trials."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from detcore.cli.command_groups import CommandGroup, Lazy
from detcore.cli.output import json_option, print_line
from detcore.cli.record_access import master_option, open_client, open_records
from detcore.cli.shell_completion import trial_argument

if TYPE_CHECKING:
    from detcore.cli.cli_context import CliContext


@click.group(
    "trial",
    cls=CommandGroup,
    lazy_commands={
        "describe": Lazy(
            "detcore.cli.trial_view:describe_trial", "Show metrics, a plot, and checkpoints."
        ),
        "logs": Lazy("detcore.cli.log_commands:trial_logs", "Show the output of a trial."),
        "plot": Lazy("detcore.cli.trial_view:plot_trial", "Plot a metric on the terminal."),
    },
)
def trial_group() -> None:
    """Show the metrics, plots and logs of a trial; label or end it."""


def _add_command(what: str, summary: str) -> None:
    """Add a command that sends a request to the runner of a trial."""

    @trial_group.command(what, help=f"{summary}. Other trials of the search continue.")
    @trial_argument
    @json_option
    @master_option
    def command(obj: CliContext, trial_id: int, as_json: bool) -> None:
        with open_client(obj) as client:
            trial = client.get_trial(trial_id)
            number = trial.experiment_id
            with open_records(obj, is_again=True) as database:
                # Read before the request, because the runner may exit within milliseconds.
                has_runner = bool(database.observe_experiment(number)[1])
            getattr(trial, what)()
        if as_json:
            click.echo(json.dumps({"trial_id": trial_id, "has_runner": has_runner}))
        elif has_runner:
            click.echo(f"trial {trial_id}: sent '{what}' to its runner")
        else:
            click.echo(f"trial {trial_id} has ended. Experiment {number} continues without it.")


_add_command("cancel", "Checkpoint and end a trial for good")
_add_command("kill", "End a trial immediately, without a checkpoint")


@trial_group.command()
@trial_argument
@click.argument("labels", nargs=-1, required=True, metavar="LABEL...")
@click.option("--remove", is_flag=True, help="Remove the labels. Missing labels are ignored.")
@master_option
def label(obj: CliContext, trial_id: int, labels: tuple[str, ...], remove: bool) -> None:
    """Add labels to a trial. The web page finds it with: "baseline" in labels."""
    with open_client(obj) as client:
        trial = client.get_trial(trial_id)
        for text in labels:
            (trial.remove_label if remove else trial.add_label)(text)
        new_labels = trial.labels
    print_line(f"trial {trial_id}: {', '.join(new_labels) or 'no labels'}")


@trial_group.command()
@trial_argument
@click.argument("text")
@master_option
def set_notes(obj: CliContext, trial_id: int, text: str) -> None:
    """Replace the notes of a trial. An empty string removes them."""
    with open_client(obj) as client:
        client.get_trial(trial_id).set_notes(text)
    print_line(f"trial {trial_id}: {text or 'no notes'}")
