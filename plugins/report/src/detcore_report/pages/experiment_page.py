"""Pages about an experiment, for `detcore experiment plot`, `detcore report` and notebooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detcore.record_descriptions import (
    describe_state,
    format_time,
    get_duration_s,
    summarize_config,
)
from detcore_report.charts.importance import importance_table
from detcore_report.charts.matplotlib_charts import draw_chart, draw_parallel, legend
from detcore_report.pages.page_parts import STYLE, cut, fragment, templates

if TYPE_CHECKING:
    from detcore.records import CheckpointRecord, LogLine
    from detcore_report.experiment_view import ExperimentView


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint, its metric, and the result of its verification.

    Attributes:
        faults: Faults of its files; empty if intact, None if not verified.
    """

    record: CheckpointRecord
    value: float | None
    faults: Sequence[str] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Contents of a report in addition to the view.

    Attributes:
        config: The configuration as YAML, with masked secrets.
        settings: The configuration as values.
        logs: The last lines of failed trials, by trial.
        written_at: Time of the report, for users.
    """

    config: str
    settings: Mapping[str, Any]
    checkpoints: Sequence[CheckpointRow]
    logs: Mapping[int, Sequence[LogLine]]
    written_at: str


def plot_page(view: ExperimentView) -> str:
    """Return a page with learning curves and hyperparameters of an experiment."""
    return _render_page(dataclasses.replace(view, charts=view.charts[:1]), None, {})


def report_page(view: ExperimentView, report: Report) -> str:
    """Return a page with all data of an experiment, below a megabyte if possible."""
    row = view.overview
    facts = {
        **summarize_config(report.settings),
        "code": row["model_dir"],
        "started": format_time(row["created_at"]),
        "report": f"written {report.written_at}",
    }
    if row["ended_at"] is not None:
        facts["ended"] = format_time(row["ended_at"])
    if row["progress"] is not None:
        facts["search"] = f"{row['progress']:.0%} done"
    return _render_page(view, report, facts)


def _render_page(view: ExperimentView, report: Report | None, facts: Mapping[str, object]) -> str:
    return _render_template(
        "report.html", view, report=report, facts=facts, style=STYLE,
        title=f"Experiment {view.record.id}: {cut(view.record.name, 200)}",
    )  # fmt: skip


def notebook_part(view: ExperimentView, *, trial_id: int | None) -> str:
    """Return an experiment, or the only trial in a view, as a part of another page."""
    return fragment(_render_template("notebook.html", view, trial_id=trial_id))


def _render_template(template: str, view: ExperimentView, **values: object) -> str:
    return templates().get_template(template).render(
        view=view, describe_state=describe_state, draw_chart=draw_chart,
        draw_parallel=draw_parallel, importance_table=importance_table, legend=legend,
        get_duration_s=get_duration_s, **values,
    )  # fmt: skip
