"""Test lists, logs and waiting, as tables, CSV and JSON."""

from __future__ import annotations

import csv
import json
import math
import re
import threading
from collections.abc import Iterator

import pytest
from recorded import Records
from terminal import without_colour

from detcore.cli.output import print_csv
from detcore.errors import NotFoundError
from detcore.log.events import CheckpointDeleted
from detcore.records import OutputLog, TrialDraft, TrialTarget
from detcore.types import ExperimentState, TrialState

LOSSES = {1: 0.5, 2: 0.25, 3: math.nan, 4: None, 5: math.inf, 6: 0.125}


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Records]:
    """A search of six trials: one with NaN, one with infinity, one without reports."""
    with Records.create(tmp_path_factory.mktemp("search")) as records:
        database = records.database
        experiment = records.experiment()
        for number, loss in LOSSES.items():
            trial = records.trial(experiment, rate=0.1 / number, layers={"count": number}, kind="a")
            assert trial == number
            folder = records.folder(trial)
            run = database.start_run(trial)
            if loss is not None:
                records.report(trial, "validation", 10, val_loss=loss, accuracy=1 - number / 10)
                records.checkpoint(trial, 10, f"{number}{number}-uuid")
            log = OutputLog(folder, run)
            log.append("stdout", f"first of {trial}")
            log.append("stderr", f"second of {trial}", rank=1)
            log.close()
            state = TrialState.ERROR if number == 4 else TrialState.COMPLETED
            database.set_trial_state(trial, state, error="it broke" if number == 4 else None)
        database.set_experiment_state(experiment, ExperimentState.COMPLETED)
        other = records.experiment(name="=HYPERLINK()")
        database.set_experiment_state(other, ExperimentState.ERROR, error="it broke")
        yield records


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Records]:
    """Records that a test may change."""
    with Records.create(tmp_path_factory.mktemp("scratch")) as records:
        yield records


def ids(rows: object) -> list[int]:
    assert isinstance(rows, list)
    return [row["id"] for row in rows]


def test_trials_are_sorted_by_metric(search: Records) -> None:
    data = search.data("experiment", "trials", "1", "--sort", "metric")
    assert ids(data["trials"]) == [6, 2, 1, 5, 3, 4]
    assert data["metric"] == "val_loss"
    larger = search.data("experiment", "trials", "1", "--sort", "metric", "--metric", "accuracy")
    assert larger["trials"][0]["id"] == 6  # smaller is better in the experiment
    limited = search.data("experiment", "trials", "1", "--sort", "metric", "--limit", "2")
    assert ids(limited["trials"]) == [6, 2]
    assert ids(search.data("experiment", "trials", "1", "--limit", "2")["trials"]) == [1, 2]
    by_state = search.data("experiment", "trials", "1", "--sort", "state")["trials"]
    assert by_state[-1]["state"] == "ERROR"


def test_trials_show_varied_hyperparameters(search: Records) -> None:
    text = search("experiment", "trials", "1").stdout
    assert text.splitlines()[0] == "all with kind=a"
    row = next(line for line in text.splitlines() if line.split()[0] == "2")
    assert row.split() == [
        "2", "COMPLETED", "10", "val_loss", "0.25", "at", "10", "1", "22-uuid",
        "rate=0.05", "layers.count=2",
    ]  # fmt: skip


def test_numbers_are_aligned_with_title(search: Records) -> None:
    header, *rows = search("experiment", "list").stdout.splitlines()
    for title in ("ID", "TRIALS", "TOOK"):
        end = header.index(title) + len(title)
        assert all(re.fullmatch(r"\S ?", row[end - 1 : end + 1]) for row in rows), title


def test_csv_has_dotted_json_names(search: Records) -> None:
    rows = search.csv("experiment", "trials", "1")
    assert [row["id"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert rows[1]["hparams.layers.count"] == "2"
    assert rows[1]["best_validation.metrics.val_loss"] == "0.25"
    assert rows[4]["best_validation.metrics.val_loss"] == "Infinity"
    assert rows[3]["best_validation.metrics.val_loss"] == ""
    assert "best_validation" not in rows[0]
    text = search("experiment", "trials", "1", "--csv").stdout_bytes
    assert text.count(b"\r\n") == text.count(b"\n") == 7
    described = search.csv("trial", "describe", "2")
    assert described[0]["metrics.val_loss"] == "0.25"
    assert search.csv("experiment", "describe", "1") == rows


def test_csv_cannot_hold_formulas(capsys: pytest.CaptureFixture[str], search: Records) -> None:
    assert search.csv("experiment", "list")[1]["name"] == "'=HYPERLINK()"
    print_csv([{"=a": "@b", "c": -1, "d": -math.inf, "e": 'say "x", y\n'}, {"f": ["-"]}], ["c"])
    assert capsys.readouterr().out.splitlines() == [
        "c,'=a,d,e,f", "-1,'@b,-Infinity,\"say \"\"x\"\", y", '",', ',,,,"[""-""]"',
    ]  # fmt: skip


def test_csv_preserves_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = {
        "a": -math.inf,
        "b": -1e-30,
        "c": -5,
        "d": "+5",
        "e": "-1e5",
        "f": "-.5",
        "g": "-Infinity",
    }
    print_csv([{"best": {"metrics": numbers}}], [])
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert list(row.values()) == ["-Infinity", "-1e-30", "-5", "+5", "-1e5", "-.5", "-Infinity"]
    print_csv([{"best": {"a": "-1+2", "b": "+A1", "c": "-Infinity()", "d": "-1e5\n"}}], [])
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert all(text.startswith("'") for text in row.values())


def test_json_and_csv_exclude_each_other(search: Records) -> None:
    result = search("experiment", "list", "--json", "--csv")
    assert result.exit_code == 2
    assert "give --json or --csv, not both" in result.stderr


def test_experiments_are_sorted_and_filtered(search: Records) -> None:
    def listed(*options: str) -> list[int]:
        return ids(search.data("experiment", "list", *options)["experiments"])

    assert listed() == [1, 2]
    assert listed("--limit", "1") == [2]
    assert listed("--sort", "name") == [2, 1]
    assert listed("--sort", "metric", "--limit", "1") == [1]
    assert listed("--state", "error") == [2]
    assert search.csv("experiment", "list", "--state", "RUNNING") == []


def test_archived_experiment_is_hidden(search: Records) -> None:
    assert search("experiment", "archive", "2").exit_code == 0
    try:
        assert ids(search.data("experiment", "list")["experiments"]) == [1]
        assert "ERROR (archived)" in search("experiment", "list", "--all").stdout
    finally:
        assert search("experiment", "unarchive", "2").exit_code == 0
    assert ids(search.data("experiment", "list")["experiments"]) == [1, 2]


def test_the_best_checkpoints(search: Records) -> None:
    assert search("experiment", "best", "1", "--uuid").stdout == "66-uuid\n"
    data = search.data("experiment", "best", "1", "-n", "9")
    assert [row["trial_id"] for row in data["checkpoints"]] == [6, 2, 1, 5, 3]
    assert [row["value"] for row in data["checkpoints"]][-2:] == ["Infinity", None]
    larger = ("--metric", "accuracy", "--larger-is-better")
    assert search.csv("experiment", "best", "1", *larger)[0]["uuid"] == "11-uuid"
    table = search("experiment", "best", "1")
    assert table.stdout.split()[:2] == ["UUID", "val_loss"]
    assert table.stderr == "download the best:  detcore checkpoint download 66-uuid\n"


def test_unknown_checkpoint_metric_is_an_error(search: Records) -> None:
    for more in ((), ("--uuid",), ("--json",)):
        error = search("experiment", "best", "1", "--metric", "acuracy", *more).exception
        assert isinstance(error, NotFoundError)
        assert str(error) == (
            "no checkpoint of experiment 1 has a numeric validation metric 'acuracy'.\n"
            "Validation metrics: accuracy, val_loss."
        )


def test_unreported_searcher_metric_is_an_error(scratch: Records) -> None:
    config = {"searcher": {"metric": "val_los", "smaller_is_better": True}}
    experiment = scratch.experiment(config=config)
    trial = scratch.trial(experiment, rate=1)
    scratch.report(trial, "validation", 5, val_loss=0.5)
    scratch.checkpoint(trial, 5, "5-uuid")
    for more in ((), ("--uuid",)):
        error = scratch("experiment", "best", experiment, *more).exception
        assert isinstance(error, NotFoundError)
        assert str(error).splitlines()[1:] == [
            "Validation metrics: val_loss.",
            f"Use another metric: detcore experiment best {experiment} --metric val_loss",
        ]


def test_best_is_checkpoint_of_best_trial(scratch: Records) -> None:
    experiment = scratch.experiment()
    for value in (0.5, 0.1, 0.9):
        trial = scratch.trial(experiment)
        scratch.report(trial, "validation", 5, val_loss=value)
        for step in (4, 6, 8):
            scratch.checkpoint(trial, step, f"{value}-{step}-uuid")
    result = scratch("experiment", "best", experiment, "--uuid")
    assert result.stdout == "0.1-6-uuid\n"
    assert result.stderr.startswith(
        f"note: the checkpoint of trial {trial - 1} is of step 6, but its val_loss of 0.1 is of "
        "step 5. No checkpoint of this trial lies at a step with a value of val_loss."
    )
    (row,) = scratch.data("experiment", "best", experiment)["checkpoints"]
    assert (row["value"], row["value_steps"], row["steps_completed"]) == (0.1, 5, 6)


def test_best_fails_without_any_value(scratch: Records) -> None:
    experiment = scratch.experiment()
    scratch.checkpoint(scratch.trial(experiment), 5, "never-validated-uuid")
    error = scratch("experiment", "best", experiment, "--uuid").exception
    assert isinstance(error, NotFoundError)
    assert str(error).splitlines()[1:] == [
        "Validation metrics: none yet.",
        f"List all checkpoints: detcore checkpoint list --experiment {experiment}",
    ]


def test_deleted_checkpoints_are_hidden(scratch: Records) -> None:
    experiment = scratch.experiment()
    trial = scratch.trial(experiment, prompt="x" * 20_000, rate=0.1)
    for step in (1, 2, 3):
        scratch.checkpoint(trial, step, f"{step}-left-out")
    for uuid in ("1-left-out", "2-left-out"):
        scratch.database.record_checkpoint(CheckpointDeleted(uuid=uuid, resources={}))
    described = scratch("trial", "describe", trial).stdout
    assert "1-left-out" not in described
    assert "3-left-out" in described
    assert "2 deleted checkpoints; --all shows them" in described
    assert "1-left-out" in scratch("trial", "describe", trial, "--all").stdout
    listed = scratch("experiment", "trials", experiment).stdout
    for text in (described, listed):
        assert "xxx (20000 characters)" in text
        assert max(map(len, text.splitlines())) < 300


def test_lists_distinguish_waiting_and_paused(scratch: Records) -> None:
    database = scratch.database
    searcher = {"name": "adaptive_asha", "metric": "val_loss", "max_length": {"batches": 16}}
    experiment = scratch.experiment(config={"entrypoint": "m:T", "searcher": searcher})
    drafts = [TrialDraft(search_index=index, hparams={}, seed=0) for index in range(3)]
    targets = [TrialTarget(search_index=index, length=4) for index in range(3)]
    ids = database.add_search_event(
        experiment, number=0, event=None, created=drafts, targets=targets
    )
    event = {"type": "validated", "trial": 0, "length": 4, "metric": 0.5}
    database.add_search_event(experiment, number=1, event=event)
    for index, steps in ((0, 4), (1, 2), (2, 4)):
        database.start_run(ids[index])
        scratch.report(ids[index], "validation", steps, val_loss=0.5)
        database.set_trial_state(ids[index], TrialState.PAUSED)
    database.set_trial_state(ids[2], TrialState.COMPLETED)
    rows = scratch.csv("experiment", "trials", experiment)
    assert [(row["state"], row["state_detail"]) for row in rows] == [
        ("PAUSED", "waiting for promotion"),
        ("PAUSED", ""),
        ("COMPLETED", "stopped by the search at 4 of 16 batches"),
    ]
    assert "waiting for promotion" in scratch("trial", "describe", ids[0]).stdout


@pytest.mark.parametrize("form", ["--json", "--csv"])
def test_uuid_option_excludes_json(search: Records, form: str) -> None:
    result = search("experiment", "best", "1", "--uuid", form)
    assert result.exit_code == 2
    assert "give only one of --uuid, --json and --csv" in result.stderr


def test_logs_of_a_trial(search: Records) -> None:
    assert search("trial", "logs", "2").stdout == "first of 2\n[1] second of 2\n"
    assert search("trial", "logs", "2", "--tail", "1").stdout == "[1] second of 2\n"
    assert search("trial", "logs", "2", "--rank", "0").stdout == "first of 2\n"
    (first, second) = search("trial", "logs", "2", "--json").stdout.splitlines()
    assert json.loads(first)["text"] == "first of 2"
    assert json.loads(second)["rank"] == 1
    rows = search.csv("trial", "logs", "2")
    assert [(row["stream"], row["text"]) for row in rows] == [
        ("stdout", "first of 2"),
        ("stderr", "second of 2"),
    ]


def test_experiment_logs_are_sorted_by_time(search: Records) -> None:
    lines = search("experiment", "logs", "1").stdout.splitlines()
    assert len(lines) == 12
    assert lines[0] == "trial 1 | first of 1"
    assert lines[-1] == "trial 6 [1] | second of 6"
    stamped = search("experiment", "logs", "1", "--tail", "1", "--timestamps").stdout
    assert stamped.startswith("20")
    assert stamped.endswith("| second of 6\n")


def test_followed_log_ends_with_trial(scratch: Records) -> None:
    experiment = scratch.runs(scratch.experiment())
    trial = scratch.trial(experiment, rate=1)
    log = OutputLog(scratch.folder(trial), scratch.database.start_run(trial))
    log.append("stdout", "before")

    def go_on() -> None:
        log.append("stdout", "after")
        scratch.database.set_trial_state(trial, TrialState.COMPLETED)
        scratch.database.set_experiment_state(experiment, ExperimentState.COMPLETED)

    worker = threading.Timer(0.5, go_on)
    worker.start()
    followed = scratch("experiment", "logs", experiment, "-f").stdout
    worker.join()
    log.close()
    assert followed == f"trial {trial} | before\ntrial {trial} | after\n"
    assert scratch("trial", "logs", trial, "-f").stdout == "before\nafter\n"


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (ExperimentState.COMPLETED, 0),
        (ExperimentState.ERROR, 1),
        (ExperimentState.CANCELED, 1),
        (ExperimentState.PAUSED, 75),
    ],
)
def test_wait_ends_with_experiment(scratch: Records, state: ExperimentState, code: int) -> None:
    experiment = scratch.runs(scratch.experiment())
    worker = threading.Timer(0.2, scratch.database.set_experiment_state, (experiment, state))
    worker.start()
    result = scratch("experiment", "wait", experiment, "--json")
    worker.join()
    assert result.exit_code == code
    assert json.loads(result.stdout)["state"] == state.value


def test_wait_has_timeout(scratch: Records) -> None:
    experiment = scratch.runs(scratch.experiment())
    result = scratch("experiment", "wait", experiment, "--timeout", "0")
    assert result.exit_code == 124
    assert result.stderr == f"experiment {experiment} is still RUNNING\n"
    result = scratch("experiment", "wait", scratch.abandon())
    assert result.exit_code == 75
    assert "RUNNING (process gone)" in result.stderr


@pytest.mark.parametrize(
    ("command", "coloured"),
    [
        ("experiment trials 1", ["\x1b[32mCOMPLETED", "\x1b[31mERROR"]),
        pytest.param(
            "experiment list", ["\x1b[32mCOMPLETED", "\x1b[31mERROR"], marks=pytest.mark.soak
        ),
        pytest.param("experiment describe 2", ["\x1b[31mERROR"], marks=pytest.mark.soak),
        pytest.param("checkpoint list", ["\x1b[32mCOMPLETED"], marks=pytest.mark.soak),
    ],
)
def test_states_are_coloured_only_on_terminal(
    search: Records, command: str, coloured: list[str]
) -> None:
    words = command.split()
    _, screen, _ = search.on_a_terminal(*words, width=160)
    assert [row_text for row_text in coloured if row_text not in screen] == []
    _, plain, _ = search.on_a_terminal(*words, variables={"NO_COLOR": "1"}, width=160)
    assert re.findall(r"\x1b\[3\dm", plain) == []
    assert "COMPLETED" in plain or "ERROR" in plain
    _, _, piped = search.on_a_terminal(*words, stdout_too=False)
    assert "\x1b" not in piped
    _, screen, _ = search.on_a_terminal(*words, "--json")
    assert json.loads(screen)


def test_ended_search_shows_no_resume_command(search: Records) -> None:
    described = search("trial", "describe", "4").stdout
    assert "it broke" in described
    assert "--resume" not in described


def test_missing_metric_setting_is_valid(scratch: Records) -> None:
    experiment = scratch.experiment(config={"is_standalone": True})
    scratch.trial(experiment, rate=1)
    assert scratch.data("experiment", "trials", experiment)["metric"] is None
    result = scratch("experiment", "best", experiment)
    assert isinstance(result.exception, SystemExit)
    assert "name a metric with --metric" in result.stderr


@pytest.mark.parametrize(
    ("metrics", "best"),
    [
        (({"accuracy": 0.5, "val_loss": 2.0}, {"accuracy": 0.75, "val_loss": 0.5}), "val_loss 0.5"),
        (({"accuracy": 0.5}, {"accuracy": 0.75}, {"accuracy": 0.25}), "accuracy 0.75"),
        (({"tokens": 5.0}, {"tokens": 7.0}), "-"),
    ],
)
def test_the_best_value_of_a_script_is_listed(
    scratch: Records, metrics: tuple[dict[str, float], ...], best: str
) -> None:
    experiment = scratch.experiment(config={"is_standalone": True})
    trial = scratch.trial(experiment)
    for step, reported in enumerate(metrics, 1):
        scratch.report(trial, "validation", step, **reported)
    row = scratch("experiment", "list").stdout.splitlines()[-1]
    assert f"  {best}  " in row, row


def test_terminal_shows_valid_uuid_prefixes(scratch: Records) -> None:
    experiment = scratch.experiment()
    trial = scratch.trial(experiment)
    scratch.database.start_run(trial)
    lone, *twins = (
        f"{beginning}-0000-4000-8000-00000000000{number}"
        for number, beginning in enumerate(("6d1c0f5e", "aaaaaaaa", "aaaaaaaa"))
    )
    for step, uuid in enumerate((*twins, lone), 1):
        scratch.report(trial, "validation", step, val_loss=1 / step)
        scratch.checkpoint(trial, step, uuid)
    lists = (
        f"checkpoint list --experiment {experiment}",
        f"experiment best {experiment} -n 9",
        f"trial describe {trial}",
        f"experiment trials {experiment}",
    )
    for command in lists:
        _, screen, _ = scratch.on_a_terminal(*command.split(), width=160)
        text = without_colour(screen)
        assert "6d1c0f5e" in text, command
        assert lone not in text, command
        assert "trials" in command or all(uuid in text for uuid in twins), command
        piped = scratch(*command.split()).stdout
        assert lone in piped, command  # a program may need it
    assert lone in scratch("checkpoint", "delete", "6d1c0f5e", "--dry-run").stdout
    both = scratch("checkpoint", "describe", "aaaaaaaa").exception
    assert all(uuid in str(both) for uuid in twins)
