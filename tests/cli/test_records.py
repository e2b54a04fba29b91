"""Test the text and JSON output of ``detcore experiment`` and ``detcore trial``."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from recorded import Records

from detcore.cli import main
from detcore.errors import NotFoundError
from detcore.record_descriptions import format_bytes, format_duration, summarize_config
from detcore.types import ExperimentState


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    with Records.create(tmp_path) as records:
        yield records


def columns(line: str) -> list[str]:
    return line.split()


def test_empty_list_shows_run_command(records: Records) -> None:
    result = records("experiment", "list")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "No experiments in sqlite:///" in result.stderr
    assert "Start an experiment:  detcore run CONFIG.yaml" in result.stderr
    assert records.data("experiment", "list") == {"experiments": []}


def test_argument_that_is_not_utf_8_is_reported(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCORE_HOME", str(records.home))
    result = CliRunner().invoke(main, ["diverge", "half\udcff", "half\udcff"])
    assert result.exit_code == 2
    assert "'half\\udcff' is not valid UTF-8" in result.stderr


def test_list_mentions_archived_experiments(records: Records) -> None:
    experiment = str(records.experiment())
    assert records("experiment", "archive", experiment).exit_code == 0
    assert records("experiment", "list").stderr == "1 archived experiments; --all shows them\n"


def test_list_is_plain_columns_in_pipe(records: Records) -> None:
    records.trained()
    records.experiment(name="second")
    records.database.set_experiment_state(2, ExperimentState.ERROR, error="it broke")
    head, first, second = records("experiment", "list").stdout.splitlines()
    assert columns(head) == ["ID", "NAME", "STATE", "TRIALS", "BEST", "STARTED", "TOOK"]
    assert columns(first)[:6] == ["1", "digits", "RUNNING", "1", "val_loss", "0.25"]
    assert columns(second)[:5] == ["2", "second", "ERROR", "0", "-"]
    assert "\x1b" not in first
    plain = records.data("experiment", "list")["experiments"]
    assert [row["state"] for row in plain] == ["RUNNING", "ERROR"]
    assert plain[0]["best_validation"]["steps_completed"] == 20
    assert plain[0]["is_alive"] is True


def test_exited_process_is_not_shown_as_running(records: Records) -> None:
    records.abandon()
    assert "RUNNING (process gone)" in records("experiment", "list").stdout
    described = records("experiment", "describe", "1").stdout
    assert described.count("RUNNING (process gone)") == 2
    assert "detcore run --resume 1" in described
    described = records("trial", "describe", "1").stdout
    assert "RUNNING (process gone)" in described
    assert "detcore run --resume 1" in described
    assert records.data("trial", "describe", "1")["is_alive"] is False


def test_an_experiment_is_described(records: Records) -> None:
    records.trained()
    text = records("experiment", "describe", "1").stdout
    for expected in (
        "experiment 1: digits",
        "model_def:Digits",
        "single, val_loss, goal: minimize",
        "3 epochs",
        "every 10 batches",
        "val_loss 0.25 (trial 1, step 20)",
        "all with learning_rate=0.5 layers.count=2",
        "abcd1234",
        "detcore trial describe 1",
    ):
        assert expected in text
    assert "every 0" not in text


@pytest.mark.parametrize(
    ("period", "text"),
    [
        ({"epochs": 1}, "every epoch"),
        ({"batches": 1}, "every batch"),
        ({"epochs": 2}, "every 2 epochs"),
        ({"batches": 10}, "every 10 batches"),
    ],
)
def test_periods_are_formatted(period: dict[str, int], text: str) -> None:
    assert summarize_config({"min_validation_period": period})["validation"] == text


def test_secrets_of_configuration_are_masked(records: Records) -> None:
    records.trained()
    for arguments in (("describe", "1"), ("describe", "1", "--json")):
        result = records("experiment", *arguments)
        assert "runs" in result.stdout
        assert "hunter2" not in result.output


def test_experiment_without_trials_is_described(records: Records) -> None:
    records.experiment(config={"is_standalone": True})
    result = records("experiment", "describe", "1")
    assert result.exit_code == 0
    assert "none yet" in result.stdout
    assert "--resume" not in result.stdout


def test_a_trial_is_described(records: Records) -> None:
    trial = records.trained()
    lines = records("trial", "describe", trial).stdout.splitlines()
    text = "\n".join(lines)
    rows = [columns(line) for line in lines]
    assert ["STEP", "val_loss", "accuracy"] in rows
    assert ["20", "0.2500", "0.5000", "best"] in rows
    assert ["30", "10.25", "0.5000"] in rows
    assert "step 30: loss 0.03333" in text
    assert ["abcd1234-full-uuid", "30", "COMPLETED", "1.5", "kB"] in [row[:5] for row in rows]
    assert "val_loss (validation) over steps" in text
    assert "min 0.25 at step 20, max 10.25 at step 10, last 10.25" in text
    assert "too wide" not in text


def test_a_trial_is_labeled(records: Records) -> None:
    trial = str(records.trained())
    labeled = records("trial", "label", trial, "new", "baseline").stdout
    assert labeled == f"trial {trial}: baseline, new\n"
    output = records("trial", "label", trial, "new", "--remove").stdout
    assert output == f"trial {trial}: baseline\n"
    assert records("trial", "set-notes", trial, "old split").exit_code == 0
    described = records("trial", "describe", trial).stdout
    assert "baseline" in described
    assert "old split" in described
    data = records.data("trial", "describe", trial)
    assert (data["labels"], data["notes"]) == (["baseline"], "old split")
    table = records("experiment", "trials", "1").stdout
    assert "LABELS" in table
    assert "baseline" in table
    assert isinstance(records("trial", "label", "99", "x").exception, NotFoundError)


def test_one_value_is_not_plotted(records: Records) -> None:
    trial = records.trial(records.experiment(), learning_rate=0.5)
    records.report(trial, "validation", 10, val_loss=0.25)
    for command in ("describe", "plot"):
        text = records("trial", command, trial).stdout
        assert (
            "val_loss (validation) over steps\n0.25 at step 10; a plot needs at least two values"
            in text
        )
        assert "min 0.25" not in text


def test_trial_description_as_json_and_csv(records: Records) -> None:
    trial = records.trained()
    data = records.data("trial", "describe", trial, "--metric", "loss")
    assert data["best_validation"]["metrics"]["val_loss"] == 0.25
    assert [row["steps_completed"] for row in data["validations"]] == [10, 20, 30]
    assert data["training"]["num_reports"] == 3
    assert data["training"]["batches_per_second"] > 0
    assert data["checkpoints"][0]["size_bytes"] == 1500
    assert data["plot"] == {
        "metric": "loss",
        "kind": "training",
        "points": [[10, 0.1], [20, 0.05], [30, 1 / 30]],
    }
    assert data["hparams"] == {"learning_rate": 0.5, "layers": {"count": 2}}


def test_a_trial_without_reports_is_described(records: Records) -> None:
    records.trial(records.experiment())
    result = records("trial", "describe", "1")
    assert result.exit_code == 0
    assert "not started" in result.stdout
    assert result.stdout.count("none yet") == 2
    assert "no reports yet" in result.stdout
    assert records.data("trial", "describe", "1")["plot"] is None


def test_special_numbers_in_json(records: Records) -> None:
    trial = records.trial(records.experiment())
    records.database.start_run(trial)
    for step, value in ((1, math.nan), (2, math.inf), (3, 1.5), (4, -math.inf)):
        records.report(trial, "validation", step, val_loss=value)
    data = records.data("trial", "describe", trial)
    assert [row["metrics"]["val_loss"] for row in data["validations"]] == [
        "NaN",
        "Infinity",
        1.5,
        "-Infinity",
    ]
    assert "3 not finite" in records("trial", "describe", trial).stdout


def test_long_tables_show_last_rows_and_best(records: Records) -> None:
    trial = records.trial(records.experiment())
    records.database.start_run(trial)
    for step in range(1, 51):
        records.report(trial, "validation", step, val_loss=float(step))
    text = records("trial", "describe", trial).stdout
    rows = [columns(line) for line in text.splitlines()]
    assert ["1", "1.000", "best"] in rows
    assert ["50", "50.00"] in rows
    assert ["30", "30.00"] not in rows
    assert "29 earlier validations; --all shows them" in text
    everything = records("trial", "describe", trial, "--all").stdout
    assert ["30", "30.00"] in [columns(line) for line in everything.splitlines()]


@pytest.mark.parametrize("num_earlier", [0, 2])
def test_description_has_last_fifty_trials(records: Records, num_earlier: int) -> None:
    experiment = records.experiment()
    for _ in range(50 + num_earlier):
        records.trial(experiment)
    text = records("experiment", "describe", experiment).stdout
    hint = f"{num_earlier} earlier trials:  detcore experiment trials {experiment}"
    assert (hint in text, "earlier" in text) == (num_earlier > 0, num_earlier > 0)


def test_only_some_of_many_reports_are_read(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = records.trial(records.experiment())
    records.database.start_run(trial)
    for step in range(1, 61):
        records.report(
            trial, "training", step, loss=1 / step, **({"rare": 1.0} if step == 7 else {})
        )
        records.report(trial, "validation", step, val_loss=float((step - 13) ** 2))
    description = records.data("trial", "describe", trial, "--metric", "loss")
    monkeypatch.setattr("detcore.cli.trial_facts._MANY", 50)
    monkeypatch.setattr("detcore.cli.trial_facts._PARTS", 4)

    text = records("trial", "describe", trial).stdout
    rows = [columns(line) for line in text.splitlines()]
    assert ["13", "0", "best"] in rows
    assert ["41", "784.0"] in rows
    assert ["40", "729.0"] not in rows
    assert "39 earlier validations" in text
    assert "reports  60" in text
    assert "min 0 at step 13, max 2209 at step 60, last 2209; " in text
    assert "60 reports were read" in text

    some = records.data("trial", "describe", trial, "--metric", "loss")
    assert some["validations"] == description["validations"]
    assert some["training"]["num_reports"] == 60
    assert some["training"]["last"] == description["training"]["last"]
    assert [step for step, _ in some["plot"]["points"]] == [1, 15, 30, 45, 60]
    rare = records.data("trial", "describe", trial, "--metric", "rare")
    assert rare["plot"]["points"] == [[7, 1.0]]
    assert len(records.csv("trial", "describe", trial)) == 120


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("trial", "describe", "9"), r"no trial 9 in .*\nTrials there: 1\."),
        (("experiment", "describe", "9"), r"no experiment 9 in .*\nExperiments there: 1\."),
        (
            ("trial", "describe", "1", "--metric", "acc"),
            r"has not reported a metric 'acc'.\n"
            r"Reported metrics: val_loss, accuracy \(validation\); loss \(training\)\.",
        ),
    ],
)
def test_unknown_names_list_valid_names(
    records: Records, arguments: tuple[str, ...], says: str
) -> None:
    records.trained()
    error = records(*arguments).exception
    assert isinstance(error, NotFoundError)
    with pytest.raises(NotFoundError, match=says):
        raise error


def shown_on_a_terminal(records: Records, *arguments: object, width: int = 100) -> str:
    """Run the command on a pseudo-terminal and return its output."""
    code, output, _ = records.on_a_terminal(*arguments, width=width)
    assert code == 0, output
    return output


def test_trial_has_colours_and_plot_on_terminal(records: Records) -> None:
    trial = records.trained()
    coloured = shown_on_a_terminal(records, "trial", "describe", trial)
    assert "\x1b[36m" in coloured
    assert re.search(r"(?m)^ *\S* [|+].*\*", coloured)  # the plot


def test_tables_fit_narrow_terminal(records: Records) -> None:
    trial = records.trained()
    commands = (
        ("trial", "describe", str(trial)), ("experiment", "list"), ("experiment", "trials", "1"),
    )  # fmt: skip
    for arguments in commands:
        text = shown_on_a_terminal(records, *arguments, width=60)
        for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
            assert len(line) <= 60, line
        assert "too wide for this terminal" not in text
    records.report(trial, "validation", 40, **{f"accuracy of class {n}": 0.5 for n in range(5)})
    text = shown_on_a_terminal(records, "trial", "describe", trial, width=60)
    assert re.search(r"too wide for this terminal: .*accuracy of class 4", text)


def test_commands_import_lazily() -> None:
    code = (
        "import sys, detcore.cli.trial_view, detcore.cli.experiment_commands, detcore.cli.output\n"
        "import detcore.cli.config_commands\n"
        "heavy = {'rich', 'sqlalchemy', 'pydantic', 'numpy', 'alembic', 'yaml', 'detcore.config'}\n"
        "print(heavy & set(sys.modules))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert finished.stdout == "set()\n"


def test_units_are_readable() -> None:
    assert [format_bytes(size) for size in (None, 0, 999, 1500, 2_500_000, 10**13)] == [
        "-",
        "0 B",
        "999 B",
        "1.5 kB",
        "2.5 MB",
        "10 TB",
    ]
    assert [format_duration(seconds) for seconds in (None, 7.4, 185, 3720)] == [
        "-",
        "7s",
        "3m 05s",
        "1h 02m",
    ]
