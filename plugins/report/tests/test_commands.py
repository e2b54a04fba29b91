"""``detcore report`` and ``detcore experiment plot``: self-contained pages and images."""

from __future__ import annotations

import math
import re
import resource
import shutil
import sqlite3
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from page_check import Page
from page_records import add_search, save_checkpoint
from recorded import CONFIG, Records

from detcore.errors import NotFoundError
from detcore.log.events import CheckpointStarted
from detcore.records import Database, OutputLog
from detcore.types import ExperimentState, TrialState
from detcore_report import (
    Chart,
    Curve,
    chart_table,
    draw_parallel,
    draw_scatters,
    escape,
    page,
    read_view,
    table,
)
from detcore_report.pages.experiment_page import plot_page

HOSTILE = (
    "</title></style><script>alert('1')</script>\"'><img src=x onerror=alert(1)>\x00\u202e&amp;"
)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Records]:
    home = tmp_path_factory.mktemp("pages") / "home"
    with Database.open(f"sqlite:///{home / 'detcore.db'}") as database:
        yield Records(home, database)


def written(records: Records, folder: Path, *arguments: object) -> Page:
    """Run a command that writes a page, and return the page."""
    path = folder / "page.html"
    result = records(*map(str, arguments), "-o", str(path))
    assert result.exit_code == 0, result.exception
    assert result.stdout == f"{path}\n"
    html = Page(path.read_text(encoding="utf-8"))
    assert html.policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    return html


def test_report_has_all_sections(records: Records, tmp_path: Path) -> None:
    storage = {"type": "shared_fs", "host_path": "/nowhere", "secret_key": "hunter2"}
    experiment = add_search(records.database, 3, 20, checkpoint_storage=storage)
    html = written(records, tmp_path, "report", experiment, "--no-verify")
    for expected in (
        f"Experiment {experiment}: digits", "Learning curves", "val_loss (validation)",
        "accuracy (validation)", "loss (training)", "rate (log scale)", "optimizer.name", "sgd",
        "rmsprop", "Trials, the best first", "Configuration",
        "random, val_loss, goal: minimize",
    ):  # fmt: skip
        assert expected in html.text, expected
    assert "hunter2" not in html.html
    assert "secret_key: '********'" in html.text
    # Four metrics, the first in a wide and a narrow drawing, and the hyperparameters.
    assert len(html.drawings()) == 6
    labels = re.findall(r"<text [^>]*>([^<]*)<", html.drawings()[0])
    assert labels[:6] == ["0", "50", "100", "150", "200", "steps"]


def test_plot_has_curves_and_hyperparameters(records: Records, tmp_path: Path) -> None:
    experiment = add_search(records.database, 12)
    html = written(records, tmp_path, "experiment", "plot", experiment)
    assert len(html.drawings()) == 3
    assert "best: trial" in html.text
    other = written(records, tmp_path, "experiment", "plot", experiment, "--metric", "loss")
    assert "loss (training)" in other.text
    with pytest.raises(
        NotFoundError, match=r"metric 'f1'.\nReported metrics: accuracy, val_loss, "
    ):
        raise records("experiment", "plot", str(experiment), "--metric", "f1").exception or OSError


def test_view_of_some_trials_keeps_ranks(records: Records) -> None:
    experiment = add_search(records.database, 9, 6)
    expected = read_view(records.database, experiment)
    pair = [expected.trials[4].id, expected.trials[2].id]
    few = read_view(records.database, experiment, only=pair)
    assert few.trials == [expected.trials[2], expected.trials[4]]
    assert {curve.trial_id for curve in few.charts[0].curves} == set(pair)
    many = read_view(records.database, experiment, max_rows=5)
    assert (many.trials, many.num_trials) == (expected.trials[:5], 9)


def test_report_of_100_trials_is_below_one_megabyte(records: Records, tmp_path: Path) -> None:
    experiment = add_search(records.database, 100, 3)
    html = written(records, tmp_path, "report", experiment)
    assert html.html.count("<path id=") == 6 * 100  # no trial is omitted
    text = plot_page(read_view(records.database, experiment))
    assert len(text.encode()) < 250_000
    # Eight metrics with 500 reports per trial: 400,000 points.
    metrics = ", ".join(f"'metric {number}', n.i % 9 * trials.id" for number in range(8))
    with sqlite3.connect(records.home / "detcore.db") as connection:
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) "
            "INSERT INTO metrics (trial_id, run_id, kind, steps_completed, metrics, reported_at) "
            f"SELECT trials.id, 1, 'training', 100 + i, json_object({metrics}), 0 "
            "FROM trials, n WHERE experiment_id = ?",
            [experiment],
        )
    connection.close()
    html = written(records, tmp_path, "report", experiment, "--no-verify")
    assert 300_000 < len(html.html.encode()) < 1_000_000
    assert html.html.count("<path id=") == 10 * 100


def test_any_experiment_has_a_report(records: Records, tmp_path: Path) -> None:
    empty = records.experiment()  # this process runs it
    assert "None yet" in written(records, tmp_path, "report", empty).text
    silent = add_search(records.database, 12, 0)
    text = written(records, tmp_path, "report", silent).text
    assert "No trial has reported a metric with a finite value yet." in text
    single = add_search(records.database, 1, 1)
    html = written(records, tmp_path, "report", single)
    assert html.html.count("<circle") == 5  # one report is a point, not a line
    script = records.experiment({"is_standalone": True})
    trial = records.trial(script, rate=1)
    records.report(trial, "training", 3, loss=0.5)
    assert "loss (training)" in written(records, tmp_path, "report", script).text


def test_values_that_are_not_finite_are_counted(records: Records, tmp_path: Path) -> None:
    experiment = records.experiment()
    for value in (math.nan, math.inf, -math.inf, 1e308, -1e308, 0.5, 10**400):
        trial = records.trial(experiment, value=str(value)[:9])
        records.report(trial, "validation", 1, val_loss=value)
        records.report(trial, "validation", 2, val_loss=2.0)
    html = written(records, tmp_path, "report", experiment)
    assert "values that are not finite are omitted" in html.text
    paths = re.findall(r' d="(.*?)"', "".join(html.drawings()))
    assert len(paths) > 7
    assert not re.search("[a-z]", "".join(paths))  # nan, inf
    written(records, tmp_path, "experiment", "plot", experiment)


def test_user_strings_are_escaped(records: Records, tmp_path: Path) -> None:
    config = {
        **CONFIG,
        HOSTILE: HOSTILE,
        "description": HOSTILE,
        "hyperparameters": {HOSTILE: {"type": "categorical", "vals": [HOSTILE, 1]}},
        "searcher": {"name": HOSTILE, "metric": HOSTILE, "max_length": {HOSTILE: 1}},
    }
    experiment = records.database.create_experiment(
        config=config, config_text=HOSTILE, model_dir=HOSTILE, name=HOSTILE
    )
    for index in range(9):
        trial = records.trial(
            experiment, **{HOSTILE: HOSTILE if index % 2 else index, "b": HOSTILE}
        )
        folder = records.folder(trial)
        log = OutputLog(folder, records.database.start_run(trial))
        log.append("stderr", HOSTILE)
        log.close()
        records.report(trial, "validation", 1, **{HOSTILE: 1.0 + index, "x" + HOSTILE: 2.0})
        records.report(trial, "training", 1, **{HOSTILE: 1.0})
        records.database.set_trial_state(trial, TrialState.ERROR, error=HOSTILE)
        records.database.record_checkpoint(
            CheckpointStarted(
                uuid=f"{HOSTILE}{experiment}{index}", storage_url=HOSTILE, steps_completed=1
            ),
            trial_id=trial,
        )
    records.database.set_experiment_state(experiment, ExperimentState.ERROR, error=HOSTILE)
    for command in (("report",), ("experiment", "plot")):
        html = written(records, tmp_path, *command, experiment)  # parsed: no other element
        assert "<script" not in html.html
        assert "<img" not in html.html
        assert "\x00" not in html.html
        assert "\u202e" not in html.html
        assert "<script>alert('1')</script>" in html.text  # it is displayed as text


def test_failed_trials_show_error_and_log(records: Records, tmp_path: Path) -> None:
    experiment = records.experiment()
    trial = records.trial(experiment)
    log = OutputLog(records.folder(trial), records.database.start_run(trial))
    for number in range(40):
        log.append("stderr", f"line {number}")
    log.close()
    records.database.set_trial_state(trial, TrialState.ERROR, error="ValueError: shapes differ")
    html = written(records, tmp_path, "report", experiment)
    assert "ValueError: shapes differ" in html.text
    assert "line 39" in html.text
    assert "line 9\n" not in html.text


def test_checkpoints_are_verified(records: Records, tmp_path: Path) -> None:
    entries = tmp_path / "kept"
    experiment = records.experiment(
        {**CONFIG, "checkpoint_storage": {"type": "shared_fs", "host_path": str(entries)}}
    )
    trial = records.trial(experiment)
    records.database.start_run(trial)
    expected, damaged = (
        save_checkpoint(records.database, trial, entries, tmp_path / "files", step)
        for step in (5, 10)
    )
    records.report(trial, "validation", 5, val_loss=0.125)
    text = written(records, tmp_path, "report", experiment).text
    assert "All 2 verified checkpoints are intact." in text
    assert "0.125" in text[text.index(expected) :]
    (entries / damaged / "weights.bin").write_bytes(bytes(256 * 40))
    text = written(records, tmp_path, "report", experiment).text
    assert "1 of 2 differ from their manifests." in text
    assert "weights.bin: " in text
    text = written(records, tmp_path, "report", experiment, "--no-verify").text
    assert text.count("not verified") == 3  # one line, and two rows
    shutil.rmtree(entries)
    assert (
        "2 of 2 differ from their manifests."
        in written(records, tmp_path, "report", experiment).text
    )


def test_page_is_written_to_stdout(records: Records) -> None:
    experiment = add_search(records.database, 2)
    result = records("report", str(experiment), "-o", "-")
    Page(result.stdout)
    assert result.stdout.startswith("<!DOCTYPE html>")


def test_png_image(records: Records, tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    many = add_search(records.database, 12)
    empty = records.experiment()
    for experiment in (many, empty):
        result = records("experiment", "plot", str(experiment), "-o", str(path))
        assert result.exit_code == 0, result.exception
        head = path.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", head[16:])
        assert width > 1000
        assert height > 500


def test_png_skips_trial_without_finite_value(records: Records, tmp_path: Path) -> None:
    from matplotlib.image import imread

    experiment = records.experiment()
    for factor in (1.0, math.nan, 2.0):
        trial = records.trial(experiment)
        for step in (1, 2):
            records.report(trial, "validation", step, val_loss=factor * step)
    path = tmp_path / "plot.png"
    assert records("experiment", "plot", str(experiment), "-o", str(path)).exit_code == 0
    pixels = (255 * imread(path)[..., :3]).round()
    colours = ((0, 114, 178), (200, 76, 0), (0, 128, 92))
    counts = [(pixels == colour).all(-1).sum() for colour in colours]
    assert counts[1] < 100  # the legend entry
    assert min(counts[0], counts[2]) > 400


def test_png_of_hostile_names(records: Records, tmp_path: Path) -> None:
    experiment = records.experiment(name="$\\frac{$\x00")
    for index in range(2):
        trial = records.trial(experiment, **{"$a_$\x1b": f"$\\nothing{{{index}$"})
        records.report(trial, "validation", 1, val_loss=index + 1.0)
    path = tmp_path / "plot.png"
    assert records("experiment", "plot", str(experiment), "-o", str(path)).exit_code == 0


def test_page_ignores_matplotlib_settings(records: Records) -> None:
    import matplotlib

    view = read_view(records.database, add_search(records.database, 3), all_metrics=True)
    before = plot_page(view)
    with matplotlib.rc_context({"text.usetex": True, "lines.marker": "x", "font.size": 40}):
        assert plot_page(view) == before
        assert matplotlib.rcParams["font.size"] == 40


def test_pages_are_drawn_in_threads(records: Records) -> None:
    view = read_view(records.database, add_search(records.database, 3), all_metrics=True)
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(plot_page, [view] * 8))) == 1


@pytest.mark.parametrize("name", ["plot.gif", "plot", "missing/plot.html", "."])
def test_unwritable_output_is_reported(records: Records, tmp_path: Path, name: str) -> None:
    experiment = add_search(records.database, 1)
    result = records("experiment", "plot", str(experiment), "-o", str(tmp_path / name))
    assert result.exit_code == 2
    assert str(tmp_path) in result.stderr


def test_full_disk_keeps_previous_report(records: Records, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text("the former one")
    experiment = add_search(records.database, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        result = records("report", experiment, "--no-verify", "-o", report)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot be written: File too large" in result.stderr
    assert [path.name for path in tmp_path.glob("*")] == ["report.html"]
    assert report.read_text() == "the former one"


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@example(values=[1.0, 2.2250738585e-313])
@example(values=[1.7e308, 1.0])
@given(values=st.lists(FINITE, min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_any_finite_numbers_are_drawn(records: Records, values: list[float]) -> None:
    experiment = records.experiment()
    for value in values:
        trial = records.trial(experiment, rate=value)
        for step in (1, 2):
            records.report(trial, "validation", step, val_loss=value * (step / 2))
    view = read_view(records.database, experiment)
    html = Page(plot_page(view))
    assert html.html.count('<g class="t ') == len(values) * (2 + (len(view.axes) > 1))
    assert len(view.axes) < 2 or Page(page("", draw_scatters(view)).replace("bdi>", "i>"))


def labels_of(records: Records, setting: dict[str, Any], values: list[Any]) -> list[str]:
    """Return the labels of the axis of a hyperparameter."""
    experiment = records.experiment({**CONFIG, "hyperparameters": {"tried": setting}})
    for value in values:
        trial = records.trial(experiment, tried=value)
        records.report(trial, "validation", 1, val_loss=0.5)
    drawing = draw_parallel(read_view(records.database, experiment))
    labels = re.findall(r"<text [^>]*>([^<]*)<", drawing)
    return labels[1 : labels.index("val_loss")]


def test_axes_follow_the_types_of_hyperparameters(records: Records) -> None:
    logarithmic = {"type": "log", "minval": -4, "maxval": -1, "base": 10}
    powers = ["0.0001", "0.001", "0.01", "0.1"]
    assert labels_of(records, logarithmic, [0.001, 0.01]) == powers
    categorical = {"type": "categorical", "vals": ["sgd", "adam", "rmsprop", True]}
    names = ["sgd", "adam", "rmsprop", "True"]
    assert labels_of(records, categorical, ["adam", True]) == names
    expected = {"type": "int", "minval": 0, "maxval": 100}
    assert labels_of(records, expected, [64, 65]) == ["0", "20", "40", "60", "80", "100"]
    assert labels_of(records, {}, [3, "auto", None]) == ["3", "None", "auto"]
    assert len(labels_of(records, {}, [f"name {number}" for number in range(50)])) <= 12
    huge = {"type": "log", "minval": 0, "maxval": 10**6, "base": 10}
    assert labels_of(records, huge, [10.0, 20.0])[::5] == ["10", "20"]


@given(text=st.text())
def test_text_hyperparameters_stay_text(text: str) -> None:
    html = Page(page(text, f'<p class="{escape(text)}">{escape(text)}</p>'
                     + table(text, [text], [(text, [text])])))  # fmt: skip
    assert html.policy


def test_chart_table_has_ends_and_extremes(
    records: Records,
) -> None:
    number = add_search(records.database, 2, 2)
    view = read_view(records.database, number)
    first, second = (trial.id for trial in view.trials)
    chart = Chart(
        metric="loss",
        kind="validation",
        curves=[
            Curve(
                trial_id=first,
                points=[(10, 5.0), (20, 1.0), (30, 9.0), (40, 4.0)],
                num_not_finite=3,
            ),
            Curve(trial_id=second, points=[], num_not_finite=2),
        ],
    )
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", chart_table(view, chart), re.DOTALL)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in rows]
    assert [row for row in cells if row] == [
        [str(first), "5", "10", "1", "20", "9", "30", "4", "40", "3"],
        [str(second), *["-"] * 8, "2"],
    ]
