"""``detcore report`` and ``detcore experiment plot``: write an experiment to a file."""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import yaml

from detcore.cli import EXPERIMENT_ID, last_lines, master_option, open_records, survey_checkpoints
from detcore.record_descriptions import format_time, visible_config
from detcore_report.charts.matplotlib_charts import draw_png
from detcore_report.experiment_view import ExperimentView, read_view
from detcore_report.pages.experiment_page import CheckpointRow, Report, plot_page, report_page

if TYPE_CHECKING:
    from detcore.cli import CliContext
    from detcore.records import Database


_NUM_LOG_LINES = 30
_MAX_FAILED = 10
_PLOT_EXAMPLES = """
\b
Examples:
  detcore experiment plot 3
  detcore experiment plot 3 -o search.png --metric accuracy
"""
_REPORT_EXAMPLES = """
\b
Examples:
  detcore report 3
  detcore report 3 --no-verify -o - > report.html
"""


@click.command("plot", epilog=_PLOT_EXAMPLES)
@click.argument("experiment_id", type=EXPERIMENT_ID, metavar="EXPERIMENT_ID")
@click.option(
    "-o", "--output", metavar="FILE",
    help="Output file: a self-contained .html page or a .png image.  [default: "
    "./experiment-ID.html]",
)  # fmt: skip
@click.option("--metric", metavar="NAME", help="Metric to draw.  [default: the searcher's]")
@master_option
def plot_experiment(
    obj: CliContext, experiment_id: int, output: str | None, metric: str | None
) -> None:
    """Draw learning curves of all trials, and their hyperparameters against the metric."""
    path = output or f"experiment-{experiment_id}.html"
    kind = "html" if path == "-" else Path(path).suffix.lower().removeprefix(".")
    if kind not in ("html", "htm", "png"):
        raise click.UsageError(f"-o {path}: the name must end in .html or .png")
    with open_records(obj) as database:
        view = read_view(database, experiment_id, metric=metric)
    _write_output(path, draw_png(view) if kind == "png" else plot_page(view).encode())


@click.command(epilog=_REPORT_EXAMPLES)
@click.argument("experiment_id", type=EXPERIMENT_ID, metavar="EXPERIMENT_ID")
@click.option(
    "-o", "--output", metavar="FILE",
    help="Output file; - for standard output.  [default: ./report-ID.html]",
)  # fmt: skip
@click.option(
    "--verify/--no-verify",
    default=True,
    help="Read the checkpoints and compare them with their manifests.  [default: yes]",
)
@master_option
def report(obj: CliContext, experiment_id: int, output: str | None, verify: bool) -> None:
    """Write all records of an experiment to one HTML file.

    The file contains curves, hyperparameters, the configuration (with masked secrets), and
    checkpoints with the result of their verification. It is self-contained and needs no network.
    """
    with open_records(obj) as database:
        view = read_view(database, experiment_id, all_metrics=True)
        contents = _collect_report(obj, database, view, verify=verify)
    _write_output(output or f"report-{experiment_id}.html", report_page(view, contents).encode())


def _collect_report(
    obj: CliContext, database: Database, view: ExperimentView, *, verify: bool
) -> Report:
    settings = visible_config(view.record.config)
    failed = [trial.id for trial in view.trials if trial.error][:_MAX_FAILED]
    return Report(
        config=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True),
        settings=settings,
        checkpoints=_list_checkpoints(obj, database, view, verify=verify),
        logs={
            trial_id: last_lines(database, database.get_trial(trial_id), _NUM_LOG_LINES)
            for trial_id in failed
        },
        written_at=format_time(datetime.datetime.now(datetime.timezone.utc)),
    )


def _list_checkpoints(
    obj: CliContext, database: Database, view: ExperimentView, *, verify: bool
) -> list[CheckpointRow]:
    values = {}
    if view.metric is not None:
        values = database.checkpoint_metrics(view.record.id, view.metric)
    return [
        CheckpointRow(record, values.get(record.uuid), faults)
        for record, faults in survey_checkpoints(obj, database, view.record.id, verify=verify)
    ]


def _replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically; write to other targets, such as a pipe, directly."""
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_output(path: str, data: bytes) -> None:
    """Write a file and print its path; ``-`` is standard output."""
    if path == "-":
        sys.stdout.buffer.write(data)
        return
    try:
        _replace_file(Path(path), data)
    except OSError as error:
        raise click.UsageError(f"{path} cannot be written: {error.strerror}") from error
    click.echo(path)
