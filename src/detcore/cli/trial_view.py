"""``detcore trial describe`` and ``detcore trial plot``: the metrics of a trial."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from detcore.cli.checkpoint_store import print_checkpoints
from detcore.cli.output import (
    Format,
    NumberColumn,
    format_hparams,
    format_options,
    make_console,
    pick_fields,
    print_data,
    print_fields,
    print_heading,
    print_line,
    print_table,
)
from detcore.cli.record_access import master_option, open_records, uuid_shortener
from detcore.cli.shell_completion import trial_argument
from detcore.cli.trial_facts import (
    KINDS,
    NUM_SHOWN,
    MetricSeries,
    TrialFacts,
    list_names,
    read_trial,
)
from detcore.optional_distributions import (
    MissingDistributionError,
    import_distribution,
    install_command,
)
from detcore.record_descriptions import (
    can_resume,
    flatten,
    format_number,
)

if TYPE_CHECKING:
    from detcore.cli.cli_context import CliContext
    from detcore.records import MetricRecord


_REPORT_FIELDS = ("steps_completed", "run_id", "reported_at", "n_records", "metrics")
_BEST_FIELDS = ("trial_id", "steps_completed", "metrics")
_CHECKPOINT_FIELDS = (
    "uuid", "state", "steps_completed", "size_bytes", "committed_at", "storage_url",
)  # fmt: skip
_CSV_COLUMNS = ("kind", "steps_completed", "run_id", "reported_at", "n_records")
_MAX_PLOT_WIDTH = 100
_VALUE = operator.itemgetter(1)
_EXAMPLES = """
\b
Examples:
  detcore trial describe 3
  detcore trial describe 3 --metric accuracy     plot another metric
  detcore trial describe 3 --json                JSON for programs
"""


@click.command("describe", epilog=_EXAMPLES)
@trial_argument
@click.option("--metric", metavar="NAME", help="Metric to plot.  [default: the searcher's metric]")
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help=f"Show all validations instead of the last {NUM_SHOWN}, and deleted checkpoints.",
)
@format_options
@master_option
def describe_trial(
    obj: CliContext,
    trial_id: int,
    metric: str | None,
    show_all: bool,
    form: Format,
) -> None:
    """Show the validations, training, checkpoints and a metric plot of a trial.

    --csv prints all metric reports.
    """
    full_kinds = {"json": KINDS[:1], "csv": KINDS}.get(form, KINDS[:1] if show_all else ())
    with open_records(obj) as database:
        facts, series = read_trial(database, trial_id, metric, full_kinds)
        short = uuid_shortener(database)
    reports = [
        {"kind": kind, **pick_fields(_REPORT_FIELDS, row)}
        for kind in KINDS
        for row in facts.reports[kind]
    ]
    if print_data(form, _make_document(facts, series), reports, _CSV_COLUMNS):
        return
    _print_trial(facts)
    _print_validations(facts, show_all=show_all)
    _print_training(facts)
    _print_checkpoints(facts, short, show_all=show_all)
    if series is not None:
        _print_plot(series, facts, _find_drawing())
    _print_hint(facts)


@click.command("plot")
@trial_argument
@click.option("--metric", metavar="NAME", help="Metric to plot.  [default: the searcher's metric]")
@master_option
def plot_trial(obj: CliContext, trial_id: int, metric: str | None) -> None:
    """Plot a metric of a trial over steps on the terminal.

    'detcore experiment plot' creates a page or an image of all trials. Both commands require
    detcore-report: pip install 'detcore[report]'
    """
    report = import_distribution("detcore_report", needed_by="'detcore trial plot'")
    with open_records(obj) as database:
        facts, series = read_trial(database, trial_id, metric, ())
    if series is None:
        click.echo(f"trial {trial_id} has reported no metrics yet", err=True)
        return
    _print_plot(series, facts, report.draw_text_plot)


def _compute_speed(facts: TrialFacts) -> float | None:
    """Return batches per second of the newest run, validations and checkpoints included."""
    rows = [row for row in facts.reports["training"] if row.run_id == facts.trial.run_id]
    if len(rows) < 2 or rows[0].reported_at is None or rows[-1].reported_at is None:
        return None
    seconds = (rows[-1].reported_at - rows[0].reported_at).total_seconds()
    steps = rows[-1].steps_completed - rows[0].steps_completed
    return steps / seconds if seconds > 0 and steps > 0 else None


def _make_document(facts: TrialFacts, series: MetricSeries | None) -> dict[str, Any]:
    trial, searcher = facts.trial, facts.experiment.searcher
    last = next(reversed(facts.reports["training"]), None)
    names = [field.name for field in dataclasses.fields(trial)]
    names = [name for name in names if name not in ("control", "current_run")]
    return {name: getattr(trial, name) for name in names} | {
        "is_alive": facts.is_alive,
        "num_runs": facts.num_runs,
        "steps_completed": facts.steps_completed,
        "metric": searcher.metric,
        "smaller_is_better": searcher.smaller_is_better,
        "best_validation": facts.best and pick_fields(_BEST_FIELDS, facts.best),
        "validations": [pick_fields(_REPORT_FIELDS, row) for row in facts.reports["validation"]],
        "training": {
            "num_reports": facts.num_reports["training"],
            "batches_per_second": _compute_speed(facts),
            "last": pick_fields(_REPORT_FIELDS, last) if last else None,
        },
        "checkpoints": [pick_fields(_CHECKPOINT_FIELDS, row) for row in facts.checkpoints],
        "plot": series,
        "num_damaged_reports": facts.num_damaged,
        "resumes": [dataclasses.asdict(resume) for resume in facts.resumes],
    }


def _print_trial(facts: TrialFacts) -> None:
    trial = facts.trial
    print_line(
        f"trial {trial.id} of experiment {trial.experiment_id}: {facts.experiment.name}",
        style="bold",
    )
    crashes = f", {trial.num_restarts} after a crash" if trial.num_restarts else ""
    runs = f"{facts.num_runs} (the trial was resumed{crashes})"
    damaged = f"{facts.num_damaged} reports, skipped (possibly after a machine crash)"
    fields = {
        "state": f"{facts.state}: {trial.error}" if trial.error else facts.state,
        "steps": facts.steps_completed,
        "runs": runs if facts.num_runs > 1 else None,
        "last resume": str(facts.resumes[-1]) if facts.resumes else None,
        "rung": trial.rung,
        "hyperparameters": format_hparams(flatten(trial.hparams)) or None,
        "seed": trial.seed,
        "labels": ", ".join(trial.labels) or None,
        "notes": trial.notes or None,
        "job": trial.job,
        "folder": trial.trial_dir,
        "damaged": damaged if facts.num_damaged else None,
    }
    print_fields(fields, indent=2)


def _print_validations(facts: TrialFacts, *, show_all: bool) -> None:
    print_heading("Validations")
    rows = facts.reports["validation"]
    if not rows:
        print_line("none yet")
        return
    names, left_out = _split_fitting(list_names(rows, facts.metric))
    visible = list(rows if show_all else rows[-NUM_SHOWN:])
    if facts.best is not None and not any(_is_same(row, facts.best) for row in visible):
        visible.insert(0, facts.best)
    print_table(
        ["STEP", *[NumberColumn(name) for name in names], ""],
        [
            [
                row.steps_completed,
                *[_align_number(row.metrics.get(name)) for name in names],
                "best" if _is_same(row, facts.best) else "",
            ]
            for row in visible
        ],
    )
    num_hidden = facts.num_reports["validation"] - len(visible)
    if num_hidden:
        print_line(f"{num_hidden} earlier validations; --all shows them", style="dim")
    if left_out:
        print_line(f"too wide for this terminal: {', '.join(left_out)}", style="dim")


def _align_number(value: object) -> str:
    """Return a number with trailing zeros, so that columns are aligned."""
    if isinstance(value, float) and 0.001 <= abs(value) < 1000:
        return f"{value:#.4g}"
    return format_number(value)


def _is_same(row: MetricRecord, other: MetricRecord | None) -> bool:
    """Return whether two records are the same report. With NaN, equal records compare unequal."""
    if other is None:
        return False
    return (row.run_id, row.seq, row.reported_at) == (other.run_id, other.seq, other.reported_at)


def _split_fitting(names: list[str]) -> tuple[list[str], list[str]]:
    """Split metrics into metrics that fit in the width of the terminal, and other metrics."""
    console = make_console()
    if not console.is_terminal:
        return names, []
    room = console.width - 27
    fitting = 0
    for name in names:
        room -= max(len(name), 9) + 2
        if room < 0 and fitting:
            break
        fitting += 1
    return names[:fitting], names[fitting:]


def _print_training(facts: TrialFacts) -> None:
    print_heading("Training")
    last = next(reversed(facts.reports["training"]), None)
    if last is None:
        print_line("no reports yet")
        return
    values = [f"{name} {format_number(value)}" for name, value in last.metrics.items()]
    speed = _compute_speed(facts)
    fields = {
        "last": f"step {last.steps_completed}: {'  '.join(values)}",
        "reports": facts.num_reports["training"],
        "speed": speed and f"{speed:.4g} batches/s, validations and checkpoints included",
    }
    print_fields(fields, indent=2)


def _print_checkpoints(facts: TrialFacts, short: Callable[[str], str], *, show_all: bool) -> None:
    print_heading("Checkpoints")
    visible = [row for row in facts.checkpoints if show_all or row.state != "DELETED"]
    num_hidden = len(facts.checkpoints) - len(visible)
    if not facts.checkpoints:
        print_line("none yet")
    if visible:
        print_checkpoints([], [([], row) for row in visible], short)
    if num_hidden:
        print_line(f"{num_hidden} deleted checkpoints; --all shows them", style="dim")


def _find_drawing() -> Callable[..., list[str]] | None:
    """Return the function that draws plots, or None if its distribution is not installed."""
    try:
        report = import_distribution("detcore_report", needed_by="the plot")
    except MissingDistributionError:
        return None
    draw: Callable[..., list[str]] = report.draw_text_plot
    return draw


def _print_plot(
    series: MetricSeries, facts: TrialFacts, draw: Callable[..., list[str]] | None
) -> None:
    """Print a plot with its extremes. Without `draw`, print how to install it."""
    print_heading(f"{series.metric} ({series.kind}) over steps")
    finite = [point for point in series.points if math.isfinite(point[1])]
    if not finite:
        print_line("no finite value")
        return
    if len(series.points) == 1:
        step, value = series.points[0]
        text = f"{format_number(value)} at step {step}; a plot needs at least two values"
        print_line(text, style="dim")
        return
    if draw is None:
        print_line(f"plots: {install_command('detcore-report')}", style="dim")
    else:
        for line in draw(series.points, width=min(make_console().width, _MAX_PLOT_WIDTH)):
            print_line(line, style="cyan")
    low, high = min(finite, key=_VALUE), max(finite, key=_VALUE)
    text = (
        f"min {format_number(low[1])} at step {low[0]}, max {format_number(high[1])} at step "
        f"{high[0]}, last {format_number(series.points[-1][1])}"
    )
    if not facts.has_all(series.kind):
        text += f"; {len(series.points)} of {facts.num_reports[series.kind]} reports were read"
    missing = len(series.points) - len(finite)
    print_line(f"{text}; {missing} not finite" if missing else text, style="dim")


def _print_hint(facts: TrialFacts) -> None:
    experiment = facts.experiment
    states = (experiment.state.value, facts.trial.state.value)
    if all(can_resume(experiment.config, state, is_alive=facts.is_alive) for state in states):
        click.echo()
        print_line(f"resume with:  detcore run --resume {facts.trial.experiment_id}", style="dim")
