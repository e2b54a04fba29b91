"""Objects of the client as HTML, which Jupyter and IPython show in place of their ``repr``."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from detcore.client import (
    Checkpoint,
    ExperimentReference,
    ModelOrderBy,
    TrialReference,
)
from detcore.describe import format_bytes, format_number, format_time
from detcore.errors import DetcoreError
from detcore_report.experiment_view import read_view
from detcore_report.pages.experiment_page import experiment_part, trial_part
from detcore_report.pages.page_parts import cut, definition_list, escape, fragment, table

if TYPE_CHECKING:
    from detcore.records import Database


# Parts that curves are cut into; of each the extremes are drawn.
_PARTS = 30
_MOST_CHARTS = 4
_MOST_ROWS = 20
_TEXT_SHOWN = 200


def notebook_html(shown: object) -> str | None:
    """Return an object of the client as HTML.

    Args:
        shown: An experiment is shown with its learning curves and best trials, a trial with its
            learning curves, a checkpoint with the fields of its object, a model with its versions.

    Returns:
        None for other objects.
    """
    if isinstance(shown, ExperimentReference):
        return _experiment_html(shown)
    if isinstance(shown, TrialReference):
        return _trial_html(shown)
    if isinstance(shown, Checkpoint):
        return _checkpoint_html(shown)
    return _model_html(shown) if hasattr(shown, "get_versions") else None


def _experiment_html(experiment: ExperimentReference) -> str:
    def show(database: Database) -> str:
        return experiment_part(read_view(database, experiment.id, parts=_PARTS))

    return _from_records(experiment, show)


def _trial_html(trial: TrialReference) -> str:
    def show(database: Database) -> str:
        number = database.get_trial(trial.id).experiment_id
        view = read_view(
            database, number, all_metrics=True, max_charts=_MOST_CHARTS, only=[trial.id],
            parts=_PARTS,
        )  # fmt: skip
        return trial_part(view)

    return _from_records(trial, show)


def _checkpoint_html(checkpoint: Checkpoint) -> str:
    """Return a checkpoint with its metrics, metadata and files, as the object knows them."""
    saved = checkpoint.report_time
    fields = {
        "state": checkpoint.state,
        "trial": f"{checkpoint.trial_id} of experiment {checkpoint.experiment_id}",
        "steps completed": checkpoint.steps_completed,
        "saved": format_time(datetime.datetime.fromisoformat(saved) if saved else None),
        "framework": checkpoint.framework or "-",
    }
    if checkpoint.model_name is not None:
        fields["model"] = f"{checkpoint.model_name} version {checkpoint.model_version}"
    metrics = checkpoint.training.validation_metrics
    files = {name: format_bytes(size) for name, size in sorted(checkpoint.resources.items())}
    return fragment(
        f"<h3>Checkpoint {escape(checkpoint.uuid)}</h3>{definition_list(fields)}"
        f"{_pairs('Validation', ('metric', 'value'), metrics)}"
        f"{_pairs('Metadata', ('key', 'value'), checkpoint.metadata)}"
        f"{_pairs('Files', ('file', 'size'), files)}"
    )


def _model_html(model: Any) -> str:
    """Return a model with its latest versions."""
    try:
        order = ModelOrderBy.DESCENDING.value
        versions = model._transport.list_versions(model._key, order_by=order)[:_MOST_ROWS]
    except DetcoreError as error:
        return _explain(model, error)
    fields = {
        "description": model.description or "-",
        "labels": ", ".join(model.labels) or "-",
        "versions": model.num_versions,
        "changed": format_time(model.last_updated_time),
    }
    if model.archived:
        fields["archived"] = "yes: it cannot be changed"
    rows = []
    for version in versions:
        found = version["checkpoint"]
        metrics = (found["validation"] or {}).get("metrics", {})
        told = ", ".join(f"{cut(name)} {format_number(value)}" for name, value in metrics.items())
        place = [str(found["trial_id"]), str(found["steps_completed"])]
        told = cut(told or "-", _TEXT_SHOWN)
        rows.append(("", [str(version["number"]), found["uuid"], *place, told]))
    header = ["version", "checkpoint", "trial", "step", "validation"]
    shown = f" (the latest {len(rows)} of {model.num_versions})"
    caption = f"Versions{shown if len(rows) < model.num_versions else ''}"
    versions_html = table(caption, header, rows, right=[0, 2, 3]) if rows else ""
    return fragment(
        f"<h3>Model {escape(cut(model.name, _TEXT_SHOWN))}</h3>{definition_list(fields)}"
        f"{_pairs('Metadata', ('key', 'value'), model.metadata)}{versions_html}"
    )


def _from_records(shown: Any, show: Callable[[Database], str]) -> str:
    try:
        return show(shown._transport.records())
    except DetcoreError as error:
        return _explain(shown, error)


def _explain(shown: object, error: DetcoreError) -> str:
    """Return an object that cannot be read: a cell that shows it must not fail."""
    return fragment(f'<h3>{escape(repr(shown))}</h3><p class="bad">{escape(cut(error, 2000))}</p>')


def _pairs(caption: str, header: tuple[str, str], pairs: Any) -> str:
    """Return a table of names and values, or nothing without any; it ends after some rows."""
    rows = [
        ("", [cut(name, _TEXT_SHOWN), cut(format_number(value), _TEXT_SHOWN)])
        for name, value in list(pairs.items())[:_MOST_ROWS]
    ]
    if not rows:
        return ""
    few = len(rows) < len(pairs)
    many = f" (the first {len(rows)} of {len(pairs)})" if few else ""
    return table(f"{caption}{many}", header, rows)
