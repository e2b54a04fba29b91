"""Test `TrialReference`: selecting checkpoints, metrics and logs."""

from __future__ import annotations

import math
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from client_store import ClientStore

from detcore.client import CheckpointSortBy, Determined, OrderBy
from detcore.errors import (
    InvalidArgumentError,
    NoCheckpointError,
    NotFoundError,
    PluginNotFoundError,
    RunError,
)
from detcore.records import Database, OutputLog
from detcore.types import Control, ExperimentState

RUNNING = ExperimentState.RUNNING


def uuids(found: list) -> list[str]:  # type: ignore[type-arg]  # of checkpoints
    return [checkpoint.uuid for checkpoint in found]


def test_one_that_is_not_there(client: Determined, store: ClientStore) -> None:
    with pytest.raises(NotFoundError, match="no trial 7"):
        client.get_trial(7)
    with pytest.raises(InvalidArgumentError, match="trial_id is None"):
        client.get_trial(None)  # type: ignore[arg-type]


@pytest.fixture
def three(store: ClientStore) -> tuple[int, list[str]]:
    """A trial with three checkpoints; the second is the best and the third is the latest."""
    trial = store.trial(store.experiment())
    saved_uuids = [
        store.checkpoint(trial, 10, {"loss": 0.2, "accuracy": 0.9}),
        store.checkpoint(trial, 20, {"loss": 0.1, "accuracy": 0.8}),
        store.checkpoint(trial, 30, {"loss": 0.3, "accuracy": math.nan}),
    ]
    other = store.trial(1)
    store.checkpoint(other, 40, {"loss": 0.0, "accuracy": 1.0})
    return trial, saved_uuids


def test_one_checkpoint(client: Determined, three: tuple[int, list[str]]) -> None:
    number, (first, best, latest) = three
    trial = client.get_trial(number)
    assert trial.top_checkpoint().uuid == best
    assert trial.top_checkpoint(smaller_is_better=False).uuid == best
    assert trial.top_checkpoint("accuracy").uuid == best  # smaller is better in the experiment
    assert trial.top_checkpoint("accuracy", smaller_is_better=False).uuid == first
    assert trial.select_checkpoint(latest=True).uuid == latest
    assert trial.select_checkpoint(best=True).uuid == best
    selected_checkpoint = trial.select_checkpoint(
        best=True, sort_by="accuracy", smaller_is_better=False
    )
    assert selected_checkpoint.uuid == first
    assert trial.select_checkpoint(uuid=first).uuid == first


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "expected exactly one of latest, best and uuid, got none"),
        ({"latest": True, "best": True}, "got latest, best"),
        ({"best": True, "uuid": "1"}, "got best, uuid"),
        ({"latest": True, "sort_by": "loss"}, "require best=True and cannot be used with latest"),
        (
            {"uuid": "1", "smaller_is_better": False},
            "require best=True and cannot be used with uuid",
        ),
        ({"uuid": ""}, "uuid is ''"),
    ],
)
@pytest.mark.parametrize("documented", [AssertionError, ValueError])
def test_conflicting_arguments_are_rejected(
    client: Determined,
    three: tuple[int, list[str]],
    arguments: dict[str, Any],
    said: str,
    documented: type[Exception],
) -> None:
    with pytest.raises(documented, match=said):
        client.get_trial(three[0]).select_checkpoint(**arguments)


@pytest.mark.parametrize("documented", [AssertionError, ValueError, NotFoundError])
def test_trial_without_checkpoints_is_an_error(
    client: Determined, store: ClientStore, documented: type[Exception]
) -> None:
    trial = client.get_trial(store.trial(store.experiment()))
    with pytest.raises(documented, match="has no complete checkpoint"):
        trial.select_checkpoint(latest=True)
    with pytest.raises(documented, match="has no complete checkpoint"):
        trial.select_checkpoint(best=True)
    with pytest.raises(documented, match="has no complete checkpoint"):
        trial.top_checkpoint()
    assert trial.get_checkpoints() == []


def test_best_without_metric_is_an_error(client: Determined, store: ClientStore) -> None:
    trial = store.trial(store.experiment())
    uuid = store.checkpoint(trial, 10)
    reference = client.get_trial(trial)
    with pytest.raises(NoCheckpointError, match="No checkpoint has been validated"):
        reference.select_checkpoint(best=True)
    assert reference.select_checkpoint(latest=True).uuid == uuid


def test_checkpoint_of_other_trial_is_an_error(
    client: Determined, three: tuple[int, list[str]]
) -> None:
    number, saved_uuids = three
    other = client.get_trial(number + 1)
    with pytest.raises(NoCheckpointError, match=f"belongs to trial {number}, not to trial"):
        other.select_checkpoint(uuid=saved_uuids[0])
    with pytest.raises(NotFoundError, match="no checkpoint 'x'"):
        other.select_checkpoint(uuid="x")


def test_all_checkpoints(client: Determined, three: tuple[int, list[str]]) -> None:
    number, (first, best, latest) = three
    trial = client.get_trial(number)
    assert uuids(trial.get_checkpoints()) == [best, first, latest]
    assert uuids(trial.get_checkpoints("accuracy")) == [best, first, latest]
    assert uuids(trial.get_checkpoints("accuracy", OrderBy.DESC)) == [first, best, latest]
    assert uuids(trial.get_checkpoints("loss", OrderBy.DESC)) == [latest, first, best]
    by = CheckpointSortBy
    assert uuids(trial.get_checkpoints(by.BATCH_NUMBER)) == [first, best, latest]
    assert uuids(trial.get_checkpoints(by.END_TIME, OrderBy.DESC)) == [latest, best, first]
    assert uuids(trial.get_checkpoints(by.UUID)) == sorted([first, best, latest])
    assert uuids(trial.get_checkpoints(by.SEARCHER_METRIC, OrderBy.DESC)) == [latest, first, best]
    with pytest.raises(AssertionError, match="order_by requires sort_by"):
        trial.get_checkpoints(order_by=OrderBy.ASC)


def test_metrics_are_streamed(client: Determined, store: ClientStore) -> None:
    first, second = (store.trial(store.experiment()) for _ in range(2))
    for steps in range(5):
        store.report(first, steps, {"loss": float(steps)}, kind="training")
    store.report(first, 4, {"val_loss": math.inf})
    store.report(second, 9, {"loss": math.nan}, kind="training")
    found = list(client.stream_trials_training_metrics([first, second]))
    assert [(report.trial_id, report.steps_completed) for report in found] == [
        *((first, steps) for steps in range(5)),
        (second, 9),
    ]
    assert [report.metrics["loss"] for report in found[:5]] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert math.isnan(found[5].metrics["loss"])
    assert found[0].trial_run_id == 1
    assert found[0].end_time.tzinfo is not None
    (report,) = client.stream_trials_validation_metrics([first, second])
    assert (report.trial_id, dict(report.metrics)) == (first, {"val_loss": math.inf})


def write_log(store: ClientStore, trial: int, *lines: tuple[str, int, str]) -> OutputLog:
    folder = store.database.get_trial(trial).trial_dir
    assert folder is not None
    log = OutputLog(Path(folder), 1)
    for stream, rank, text in lines:
        log.append(stream, text, rank=rank)
    return log


def test_logs(client: Determined, store: ClientStore) -> None:
    number = store.trial(store.experiment())
    trial = client.get_trial(number)
    assert list(trial.logs()) == []
    lines = [("stdout", index % 2, f"line {index}") for index in range(5)]
    write_log(store, number, *lines, ("stderr", 0, "oh"), ("detcore", 0, "said")).close()
    texts = [text for _, _, text in lines]
    assert list(trial.logs()) == [*texts, "oh", "said"]
    assert list(trial.logs(head=3)) == texts[:3]
    assert list(trial.logs(head=0)) == []
    assert list(trial.logs(tail=3)) == ["line 4", "oh", "said"]
    assert list(trial.logs(tail=0)) == []
    assert list(trial.logs(rank_ids=[1])) == ["line 1", "line 3"]
    assert list(trial.logs(stdtypes=["stderr", "detcore"], tail=1)) == ["said"]
    assert list(trial.logs(rank_ids=[1], head=1)) == ["line 1"]
    for wrong in ({"head": 1, "tail": 1}, {"head": 1, "follow": True}, {"tail": -1}, {"head": -1}):
        with pytest.raises(InvalidArgumentError, match=r"head|tail"):
            trial.logs(**wrong)  # type: ignore[arg-type]  # of several kinds


def test_logs_are_followed_until_trial_ends(client: Determined, store: ClientStore) -> None:
    experiment = store.experiment(state=RUNNING)
    number = store.trial(experiment)
    store.database.set_trial_state(number, RUNNING)
    log = write_log(store, number, ("stdout", 0, "a"), ("stdout", 0, "b"))
    stream = client.get_trial(number).logs(follow=True, tail=1)
    assert next(stream) == "b"
    log.append("stdout", "c")
    assert next(stream) == "c"

    def end() -> None:
        log.append("stdout", "last words")
        with Database.open(store.database.url) as database:
            database.set_trial_state(number, ExperimentState.COMPLETED)

    thread = threading.Timer(0.05, end)
    thread.start()
    assert list(stream) == ["last words"]
    thread.join()
    log.close()


def test_metrics_frame_is_dataframe(client: Determined, store: ClientStore) -> None:
    trial = store.trial(store.experiment())
    store.report(trial, 10, {"loss": 0.5})
    store.report(trial, 20, {"loss": 0.25, "accuracy": 0.75})
    table = client.get_trial(trial).metrics_frame()
    assert list(table.index) == [10, 20]
    assert table.index.name == "steps_completed"
    assert list(table["loss"]) == [0.5, 0.25]
    assert table["accuracy"].isna().tolist() == [True, False]
    assert client.get_trial(trial).metrics_frame("training").empty
    with pytest.raises(InvalidArgumentError, match="unknown report kind 'test'"):
        client.get_trial(trial).metrics_frame("test")


def test_missing_pandas_is_reported(
    client: Determined, store: ClientStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    trial = client.get_trial(store.trial(store.experiment()))
    with pytest.raises(PluginNotFoundError, match="pip install pandas"):
        trial.metrics_frame()


def test_only_trial_can_be_killed(client: Determined, store: ClientStore) -> None:
    experiment = store.experiment(state=RUNNING)
    trial = client.get_trial(store.trial(experiment))
    trial.kill()
    assert store.database.get_control_request(experiment) is Control.KILL


@pytest.mark.parametrize("action", ["cancel", "kill"])
def test_trial_of_search_is_ended_separately(
    client: Determined, store: ClientStore, action: str
) -> None:
    experiment = store.experiment(state=RUNNING, searcher={"name": "random"})
    first, second = store.trial(experiment), store.trial(experiment)
    getattr(client.get_trial(second), action)()
    assert store.database.get_trial(second).control is Control(action)
    assert store.database.get_trial(first).control is None
    assert store.database.get_control_request(experiment) is None
    store.database.set_trial_state(second, ExperimentState.COMPLETED)
    with pytest.raises(RunError, match=rf"trial {second} has ended \(COMPLETED\)"):
        client.get_trial(second).kill()
