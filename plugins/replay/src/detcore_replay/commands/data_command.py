"""``detcore data``: the records on which trials were trained."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detcore.cli import (
    EXPERIMENT_ID,
    Column,
    CommandGroup,
    open_records,
    print_json,
    print_line,
    print_table,
)
from detcore.errors import LedgerError
from detcore_replay.ledger_proof import LedgerReport, verify_ledger

if TYPE_CHECKING:
    from detcore.cli import CliContext
    from detcore.records import Database, TrialRecord


_EXIT_NOT_PROVED = 1
_VERIFY_EXAMPLES = """
\b
Examples:
  detcore data verify 3
  detcore data verify 3 --json        one JSON object

\b
Exit codes:
  0    proved: every record of each epoch was used once
  1    not proved, or refuted; the table shows the epoch
"""


@click.group("data", cls=CommandGroup)
def data_group() -> None:
    """Inspect the data on which a trial was trained.

    Record ids are logged if the experiment file has 'data_ledger: true'.
    """


@data_group.command(epilog=_VERIFY_EXAMPLES)
@click.argument("experiment_id", type=EXPERIMENT_ID, metavar="EXPERIMENT_ID")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.pass_context
def verify(context: click.Context, experiment_id: int, as_json: bool) -> None:
    """Prove that every record of each epoch was used exactly once.

    This includes kills and restarts. Batches that a killed process trained after its last
    checkpoint do not count, because their updates were lost.
    """
    reports = _verify_trials(context.obj, experiment_id)
    proved = all(report.is_proved for report in reports.values())
    if as_json:
        _print_json(experiment_id, reports, proved=proved)
    else:
        for trial_id, report in reports.items():
            _print_report(trial_id, report)
    context.exit(0 if proved else _EXIT_NOT_PROVED)


def _verify_trials(obj: CliContext, experiment_id: int) -> dict[int, LedgerReport]:
    with open_records(obj) as database:
        database.get_experiment(experiment_id)  # its error lists the experiments
        reports = {}
        for trial in database.list_trials(experiment_id):
            if trial.trial_dir is None:
                raise LedgerError(f"trial {trial.id} was never started, so it used no records")
            reports[trial.id] = verify_ledger(
                Path(trial.trial_dir), reported_steps=_read_reported_steps(database, trial)
            )
    if not reports:
        raise LedgerError(f"experiment {experiment_id} has no trials, so it used no records")
    return reports


def _read_reported_steps(database: Database, trial: TrialRecord) -> dict[int, int]:
    steps: dict[int, int] = {}
    for row in database.metrics(trial.id, "training", with_batches=False):
        steps[row.run_id] = max(row.steps_completed, steps.get(row.run_id, 0))
    return steps


def _print_json(experiment_id: int, reports: dict[int, LedgerReport], *, proved: bool) -> None:
    trials = [
        {
            "trial_id": trial_id,
            "is_proved": report.is_proved,
            "verdict": report.sentence(),
            **dataclasses.asdict(report),
        }
        for trial_id, report in reports.items()
    ]
    print_json({"experiment_id": experiment_id, "is_proved": proved, "trials": trials})


def _print_report(trial_id: int, report: LedgerReport) -> None:
    lost = (
        f" ({report.superseded_steps} trained again after a restart)"
        if report.superseded_steps
        else ""
    )
    print_line(
        f"trial {trial_id}: steps {report.first_step} to {report.last_step}{lost}, "
        f"{len(report.runs)} run{'s' * (len(report.runs) != 1)}; ids are: {report.ids.value}"
    )
    titles = ("EPOCH", "RECORDS", "TWICE", "NEVER")
    columns = [Column(title, align="right") for title in titles]
    rows = [
        [
            str(epoch.epoch),
            str(epoch.num_records),
            str(epoch.num_twice),
            "-" if epoch.num_never is None else str(epoch.num_never),
            "" if epoch.is_complete else "not complete",
            f"such as {', '.join(map(str, epoch.examples))}" if epoch.examples else "",
        ]
        for epoch in report.epochs
    ]
    print_table([*columns, Column(""), Column("")], rows)
    print_line(report.sentence(), style="green" if report.is_proved else "red")
