"""Objects of the client as HTML, which Jupyter and IPython show in place of their ``repr``."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from detcore._distributions import (
    MissingDistributionError,
    import_distribution,
    install_command,
)
from detcore.describe import (
    cut,
    describe_experiment,
    describe_state,
    describe_trials,
    escape,
    flatten,
    format_bytes,
    format_number,
    format_time,
    fragment,
    metric_value,
    searcher_metric,
    sort_key,
    table,
    trial_state,
)
from detcore.errors import DetcoreError
from detcore.experimental._enums import ModelOrderBy

if TYPE_CHECKING:
    from detcore.database import Database
    from detcore.experimental._checkpoint import Checkpoint
    from detcore.experimental._experiment import ExperimentReference
    from detcore.experimental._model import Model
    from detcore.experimental._transport import Connected
    from detcore.experimental._trial import TrialReference

__all__ = ["checkpoint_html", "experiment_html", "model_html", "trial_html"]

# Parts that curves are cut into; of each the extremes are drawn.
_PARTS = 30
_MOST_CHARTS = 4
_MOST_ROWS = 20
_TEXT_SHOWN = 200


def experiment_html(experiment: ExperimentReference) -> str | None:
    """Return an experiment with its learning curves and best trials.

    Return None for a transport that has no records to read, whose objects have a ``repr`` alone.
    """

    def show(database: Database) -> str:
        report = _find_report()
        if report is None:
            return _experiment_table(database, experiment.id)
        part: str = report.experiment_part(report.read_view(database, experiment.id, parts=_PARTS))
        return part

    return _from_records(experiment, show)


def trial_html(trial: TrialReference) -> str | None:
    """Return a trial with its learning curves; see `experiment_html`."""

    def show(database: Database) -> str:
        number = database.get_trial(trial.id).experiment_id
        report = _find_report()
        if report is None:
            return _trial_table(database, number, trial.id)
        view = report.read_view(
            database, number, all_metrics=True, max_charts=_MOST_CHARTS, only=[trial.id],
            parts=_PARTS,
        )  # fmt: skip
        part: str = report.trial_part(view)
        return part

    return _from_records(trial, show)


def _find_report() -> ModuleType | None:
    """Return the package that draws, or None without its distribution."""
    try:
        return import_distribution("detcore_report", needed_by="the drawing of curves")
    except MissingDistributionError:
        return None


def _no_curves() -> str:
    return f'<p class="dim">Learning curves: {escape(install_command("detcore-report"))}</p>'


def _experiment_table(database: Database, number: int) -> str:
    """Return an experiment with its best trials, and how to get its curves."""
    record = database.get_experiment(number)
    trials = database.list_trials(number)
    row = describe_experiment(database, record, len(trials))
    metric, smaller = row["metric"], bool(row["smaller_is_better"])
    rows = describe_trials(database, trials, metric=metric, smaller_is_better=smaller)
    rows.sort(key=lambda one: sort_key(metric_value(one, metric), smaller_is_better=smaller))
    state = describe_state(row["state"], row["is_alive"], row["host"])
    told = f"{state} · {len(trials)} trial{'s' * (len(trials) != 1)}"
    cells = [
        [str(one["id"]), trial_state(one), str(one["steps_completed"]),
         format_number(metric_value(one, metric)), cut(_told_hparams(one["hparams"]), _TEXT_SHOWN)]
        for one in rows[:_MOST_ROWS]
    ]  # fmt: skip
    few = f" (the first {len(cells)} of {len(rows)})" if len(cells) < len(rows) else ""
    header = ["trial", "state", "steps", f"best {cut(metric or 'metric', 40)}", "hyperparameters"]
    best = table(f"Trials, the best first{few}", header, [("", row) for row in cells],
                 right=[0, 2, 3]) if cells else ""  # fmt: skip
    return fragment(
        f"<h3>Experiment {number}: {escape(cut(record.name, _TEXT_SHOWN))}</h3>"
        f"<p>{escape(told)}</p>{_error(record.error)}{best}{_no_curves()}"
    )


def _trial_table(database: Database, number: int, trial_id: int) -> str:
    """Return a trial with the metrics of its best validation, and how to get its curves."""
    experiment, trial = database.get_experiment(number), database.get_trial(trial_id)
    metric, smaller = searcher_metric(experiment.config)
    (row,) = describe_trials(database, [trial], metric=metric, smaller_is_better=bool(smaller))
    best = row["best_validation"]
    metrics = "" if best is None else _pairs(
        f"Best validation, at step {best['steps_completed']}", ("metric", "value"), best["metrics"]
    )  # fmt: skip
    hparams = dict(list(flatten(row["hparams"]).items())[:_MOST_ROWS])
    return fragment(
        f"<h3>Trial {trial_id} of experiment {number}: {escape(cut(experiment.name))}</h3>"
        f"<p>{escape(trial_state(row))} · {row['steps_completed']} steps</p>"
        f"{_error(trial.error)}{_fields(hparams)}{metrics}{_no_curves()}"
    )


def _told_hparams(hparams: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in flatten(hparams).items()) or "-"


def _error(error: str | None) -> str:
    return f'<p class="bad">{escape(cut(error, 2000))}</p>' if error else ""


def checkpoint_html(checkpoint: Checkpoint) -> str:
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
        f"<h3>Checkpoint {escape(checkpoint.uuid)}</h3>{_fields(fields)}"
        f"{_pairs('Validation', ('metric', 'value'), metrics)}"
        f"{_pairs('Metadata', ('key', 'value'), checkpoint.metadata)}"
        f"{_pairs('Files', ('file', 'size'), files)}"
    )


def model_html(model: Model) -> str:
    """Return a model with its latest versions."""
    try:
        versions = model._transport.list_versions(
            model._key, order_by=ModelOrderBy.DESCENDING.value, limit=_MOST_ROWS, offset=0
        )
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
        f"<h3>Model {escape(cut(model.name, _TEXT_SHOWN))}</h3>{_fields(fields)}"
        f"{_pairs('Metadata', ('key', 'value'), model.metadata)}{versions_html}"
    )


def _from_records(shown: Connected, show: Callable[[Database], str]) -> str | None:
    try:
        records: Callable[[], Database] | None = getattr(shown._transport, "records", None)
        return None if records is None else show(records())
    except DetcoreError as error:
        return _explain(shown, error)


def _explain(shown: Connected, error: DetcoreError) -> str:
    """Return an object that cannot be read: a cell that shows it must not fail."""
    return fragment(f'<h3>{escape(repr(shown))}</h3><p class="bad">{escape(cut(error, 2000))}</p>')


def _fields(fields: dict[str, Any]) -> str:
    items = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(cut(value, _TEXT_SHOWN))}</dd>"
        for name, value in fields.items()
    )
    return f"<dl>{items}</dl>"


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
