"""Pages about an experiment (`detcore experiment plot`, `detcore report`), and parts of pages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detcore.describe import (
    describe_state,
    format_bytes,
    format_duration,
    format_number,
    format_time,
    summarize_config,
    took_s,
)
from detcore_report.charts.importance import importance_table
from detcore_report.charts.matplotlib_charts import draw_chart, draw_parallel, legend, trial_classes
from detcore_report.pages.page_parts import cut, definition_list, escape, fragment, table
from detcore_report.pages.page_parts import page as plain_page

if TYPE_CHECKING:
    from detcore.records import CheckpointRecord, LogLine
    from detcore_report.experiment_view import Chart, ExperimentView


SIZE_LIMIT = 1_000_000
# Numbers of points of a curve to try, until the page is below its limit.
_POINTS = (400, 200, 100, 50, 24, 12, 6)
_MAX_CHECKPOINTS = 500
_MAX_LOGS = 10
_MAX_CONFIG = 60_000
# A part of another page is small, however large the experiment is.
_PART_CURVES = 30
_PART_ROWS = 10
_PART_POINTS = 60
_PART_HPARAMS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint, its metric, and the result of its verification.

    Attributes:
        faults: Faults of its files; empty if it is intact, None if it was not verified.
    """

    record: CheckpointRecord
    value: float | None
    faults: Sequence[str] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Contents of a report in addition to the view.

    Attributes:
        config: The configuration as YAML, with masked secrets.
        settings: The same as values.
        logs: The last lines of failed trials, by trial.
        written_at: Time of the report, for users.
    """

    config: str
    settings: Mapping[str, Any]
    checkpoints: Sequence[CheckpointRow]
    logs: Mapping[int, Sequence[LogLine]]
    written_at: str


def page(title: str, body: str, *, trials: Iterable[int] = ()) -> str:
    """Return a self-contained page, which may load nothing.

    Args:
        title: Not yet escaped.
        body: HTML.
        trials: Trials to highlight everywhere when the pointer is on one of their marks.
    """
    numbers = list(trials)
    lit = ""
    if numbers:
        dim = "body:has(.t:hover,tr[class]:hover) g.t{opacity:.12}"
        chosen = ",".join(f"body:has(.t{n}:hover) g.t{n}" for n in numbers)
        rows = ",".join(f"body:has(g.t{n}:hover) tr.t{n}" for n in numbers)
        lit = f"{dim}{chosen}{{opacity:1!important}}{rows}{{background:var(--box)}}"
    return plain_page(title, body, style=lit)


def plot_page(view: ExperimentView) -> str:
    """Return a page with learning curves and hyperparameters of an experiment."""
    plotted = dataclasses.replace(view, charts=view.charts[:1])
    return _fit_page(plotted, _head(view), _hyperparameters(view))


def report_page(view: ExperimentView, report: Report) -> str:
    """Return a page with all data of an experiment, below `SIZE_LIMIT` if possible."""
    rest = "\n".join(
        [_hyperparameters(view), _checkpoints(view, report), _failures(view, report),
         _configuration(report)]
    )  # fmt: skip
    return _fit_page(view, f"{_head(view)}\n{_summary(view, report)}", rest)


def _fit_page(view: ExperimentView, head: str, rest: str) -> str:
    """Return a page with the charts of a view, whose curves are thinned until it is small."""
    for points in _points_to_try(view, len(rest.encode())):
        body = f"{head}\n{_curves(view, points=points)}\n{rest}"
        html = page(_title(view), body, trials=[trial.id for trial in view.trials])
        if len(html.encode()) <= SIZE_LIMIT:
            break
    return html


def experiment_part(view: ExperimentView) -> str:
    """Return an experiment as a part of another page: curves of its metric, and its best trials."""
    drawn = dataclasses.replace(
        view, trials=view.trials[:_PART_CURVES], charts=[_first(one) for one in view.charts[:1]]
    )
    listed = dataclasses.replace(view, trials=view.trials[:_PART_ROWS])
    parts = [f"<h3>{escape(_title(view))}</h3>", _state(view), _draw(drawn)]
    if view.num_trials > len(drawn.trials):
        parts.append(
            f'<p class="dim">The best {len(drawn.trials)} of {view.num_trials} trials are drawn.'
            "</p>"
        )
    if view.trials:
        few = view.num_trials > len(listed.trials)
        many = f" (the first {len(listed.trials)} of {view.num_trials})" if few else ""
        parts.append(_trials(listed, f"Trials, the best first{many}"))
    return fragment("".join(parts))


def trial_part(view: ExperimentView) -> str:
    """Return the only trial of a view as a part of another page: its curves, and their values."""
    trial = view.trials[0]
    told = [trial.state, f"{trial.steps} steps"]
    if trial.value is not None:
        told.append(f"best {cut(view.metric)} {format_number(trial.value)} at {trial.value_step}")
    bad = f'<p class="bad">{escape(cut(trial.error, 2000))}</p>' if trial.error else ""
    return fragment(
        f"<h3>Trial {trial.id} of experiment {view.record.id}: {escape(cut(view.record.name))}</h3>"
        f"<p>{escape(' · '.join(told))}</p>{bad}{_hparams(trial.hparams, _PART_HPARAMS)}"
        f"{_draw(view)}{_ends(view)}"
    )


def _first(chart: Chart) -> Chart:
    return dataclasses.replace(chart, curves=chart.curves[:_PART_CURVES])


def _draw(view: ExperimentView, points: int = _PART_POINTS) -> str:
    """Return the charts: the first as wide as the page, the others beside each other."""
    if not view.charts:
        return '<p class="dim">No trial has reported a metric with a finite value yet.</p>'
    first, *others = view.charts
    drawings = [
        legend(view) if len(view.trials) > 1 else "",
        draw_chart(view, first, points=points, is_wide=True),
    ]
    if others:
        fewer = max(4, points // 2)
        small = [draw_chart(view, chart, points=fewer, is_wide=False) for chart in others]
        drawings.append(f'<div class="charts">{"".join(small)}</div>')
    return "\n".join(drawings)


def _hparams(values: Mapping[str, object], limit: int) -> str:
    shown = list(values.items())[:limit]
    return definition_list({name: format_number(value) for name, value in shown})


def _ends(view: ExperimentView) -> str:
    """Return a table of the metrics of the charts."""
    rows = []
    for chart in view.charts:
        for curve in chart.curves:
            low = min(curve.points, key=lambda point: point[1])
            high = max(curve.points, key=lambda point: point[1])
            ends = [f"{format_number(y)} at {x}" for x, y in (low, high, curve.points[-1])]
            rows.append(("", [cut(chart.metric, 60), chart.kind, *ends]))
    header = ["metric", "of", "smallest", "largest", "last"]
    return table("Metrics, and the steps of their values", header, rows) if rows else ""


def _points_to_try(view: ExperimentView, spent: int) -> Sequence[int]:
    """Return the numbers of points of a curve to try, leaving out those that cannot fit."""
    lengths = [len(curve.points) for chart in view.charts for curve in chart.curves]
    for index, points in enumerate(_POINTS):
        # Charts after the first get half as many; a point has 12 bytes, a curve 250 more.
        if sum(12 * min(length, points // 2) + 250 for length in lengths) + spent <= SIZE_LIMIT:
            return _POINTS[index:]
    return _POINTS[-1:]


def _title(view: ExperimentView) -> str:
    return f"Experiment {view.record.id}: {cut(view.record.name, 200)}"


def _head(view: ExperimentView) -> str:
    return f"<h1>{escape(_title(view))}</h1>\n{_state(view)}"


def _state(view: ExperimentView) -> str:
    row = view.overview
    state = describe_state(row["state"], row["is_alive"], row["host"])
    told = [state, f"{view.num_trials} trial{'s' * (view.num_trials != 1)}"]
    best = view.best
    if best is not None and best.value is not None:
        told.append(
            f"best {cut(view.metric)} {format_number(best.value)} "
            f"(trial {best.id}, step {best.value_step})"
        )
    if took_s(row) is not None:
        told.append(format_duration(took_s(row)))
    bad = f'<p class="bad">{escape(cut(row["error"], 2000))}</p>' if row["error"] else ""
    return f"<p>{escape(' · '.join(told))}</p>{bad}"


def _summary(view: ExperimentView, report: Report) -> str:
    row = view.overview
    fields = summarize_config(report.settings)
    fields["code"] = row["model_dir"]
    fields["started"] = format_time(row["created_at"])
    if row["ended_at"] is not None:
        fields["ended"] = format_time(row["ended_at"])
    if row["progress"] is not None:
        fields["search"] = f"{row['progress']:.0%} done"
    fields["report"] = f"written {report.written_at}"
    return definition_list(fields, limit=1000)


def _curves(view: ExperimentView, *, points: int) -> str:
    parts = ["<h2>Learning curves</h2>", _draw(view, points)]
    if view.hidden_metrics:
        names = ", ".join(cut(name) for name in view.hidden_metrics[:50])
        parts.append(f'<p class="dim">Not drawn: {escape(names)}</p>')
    return "\n".join(parts)


def _hyperparameters(view: ExperimentView) -> str:
    parts = ["<h2>Hyperparameters</h2>"] if view.constants or view.axes else []
    if view.constants:
        who = "of all trials" if view.num_trials > 1 else "of the trial"
        parts.append(f"<h3>Values {who}</h3>{_hparams(view.constants, 100)}")
    parallel = draw_parallel(view)
    if parallel:
        if not view.charts:
            parts.append(legend(view))
        parts.append(parallel)
    parts.append(importance_table(view))
    parts.append("<h2>Trials</h2>")
    if not view.trials:
        parts.append('<p class="dim">None yet.</p>')
        return "\n".join(parts)
    shown = len(view.trials)
    many = "" if shown == view.num_trials else f" (the first {shown} of {view.num_trials})"
    parts.append(_trials(view, f"Trials, the best first{many}"))
    return "\n".join(parts)


def _trials(view: ExperimentView, caption: str) -> str:
    classes = trial_classes(view)
    has_rungs = any(trial.rung is not None for trial in view.trials)
    varied = view.varied[:50]
    metric = cut(view.metric or "metric", 40)
    header = ["trial", "state", "steps", *(["rung"] if has_rungs else []),
              f"best {metric}", "at step", "last", *[cut(name, 60) for name in varied]]  # fmt: skip
    rows = []
    for trial in view.trials:
        cells = [str(trial.id), trial.state, str(trial.steps)]
        if has_rungs:
            cells.append("-" if trial.rung is None else str(trial.rung))
        cells += [
            format_number(trial.value),
            "-" if trial.value_step is None else str(trial.value_step),
            format_number(None if trial.last is None else float(trial.last)),
            *[
                cut(format_number(trial.hparams[name])) if name in trial.hparams else "-"
                for name in varied
            ],
        ]
        rows.append((classes[trial.id].split()[0], cells))
    first = 4 if has_rungs else 3
    numbers = [0, 2, *([3] if has_rungs else []), first, first + 1, first + 2]
    return table(caption, header, rows, right=numbers, is_tall=len(rows) > 20)


def _checkpoints(view: ExperimentView, report: Report) -> str:
    parts = ["<h2>Checkpoints</h2>"]
    if not report.checkpoints:
        parts.append('<p class="dim">There are none.</p>')
        return "\n".join(parts)
    looked = [row for row in report.checkpoints if row.faults is not None]
    faulty = [row for row in looked if row.faults]
    if not looked:
        parts.append('<p class="dim">Their files were not read (not verified).</p>')
    elif faulty:
        parts.append(f'<p class="bad">{len(faulty)} of {len(looked)} are not as saved.</p>')
    else:
        parts.append(f'<p class="ok">All {len(looked)} that were read are as they were saved.</p>')
    rows = []
    for row in report.checkpoints[:_MAX_CHECKPOINTS]:
        record = row.record
        verified = "not verified"
        if row.faults is not None:
            verified = "ok" if not row.faults else cut("; ".join(row.faults), 200)
        rows.append(
            ("", [record.uuid, str(record.trial_id), str(record.steps_completed),
                  _number(row.value), format_bytes(record.size_bytes), record.state, verified,
                  format_time(record.committed_at), cut(record.storage_url, 120)])
        )  # fmt: skip
    shown = len(rows)
    many = "" if shown == len(report.checkpoints) else f" ({shown} of {len(report.checkpoints)})"
    parts.append(
        table(
            f"Checkpoints{many}",
            ["checkpoint", "trial", "step", cut(view.metric or "metric", 40), "size", "state",
             "files", "saved", "where"],
            rows,
            right=[1, 2, 3, 4],
            is_tall=shown > 20,
        )
    )  # fmt: skip
    return "\n".join(parts)


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else format_number(value)


def _failures(view: ExperimentView, report: Report) -> str:
    failed = [trial for trial in view.trials if trial.error]
    if not failed:
        return ""
    parts = ["<h2>Failures</h2>"]
    for trial in failed[:_MAX_LOGS]:
        parts.append(f"<h3>Trial {trial.id}</h3><p>{escape(cut(trial.error, 2000))}</p>")
        lines = report.logs.get(trial.id)
        if lines:
            text = "\n".join(f"{cut(line.text, 500)}" for line in lines)
            parts.append(
                f"<details><summary>last {len(lines)} lines it printed</summary>"
                f"<pre>{escape(text)}</pre></details>"
            )
    if len(failed) > _MAX_LOGS:
        rest = ", ".join(str(trial.id) for trial in failed[_MAX_LOGS:])
        parts.append(f'<p class="dim">Failed, too: trials {escape(rest)}</p>')
    return "\n".join(parts)


def _configuration(report: Report) -> str:
    return (
        f'<h2>Configuration</h2><pre tabindex="0">{escape(cut(report.config, _MAX_CONFIG))}</pre>'
    )
