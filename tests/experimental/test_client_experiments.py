"""Test `ExperimentReference`: best checkpoints, trials, waiting and control."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest
from client_store import ClientStore

from detcore.client import Determined, OrderBy, TrialSortBy
from detcore.errors import (
    ExperimentPausedError,
    InvalidArgumentError,
    NoCheckpointError,
    NotFoundError,
    RunError,
)
from detcore.log.writing import EventLog
from detcore.records import save_secrets
from detcore.types import Control, ExperimentState

RUNNING, PAUSED = ExperimentState.RUNNING, ExperimentState.PAUSED


def uuids(found: list) -> list[str]:  # type: ignore[type-arg]  # of checkpoints
    return [checkpoint.uuid for checkpoint in found]


def test_one_that_is_not_there(client: Determined, store: ClientStore) -> None:
    store.experiment()
    with pytest.raises(NotFoundError, match=r"no experiment 7[\s\S]*Experiments there: 1"):
        client.get_experiment(7)
    with pytest.raises(ValueError, match=r"experiment_id is '1' \(str\); expected a whole number"):
        client.get_experiment("1")  # type: ignore[arg-type]


def test_experiments_are_filtered(client: Determined, store: ClientStore) -> None:
    numbers = [store.experiment(labels=["ocr"] if k % 2 else []) for k in range(4)]
    running = store.experiment(state=RUNNING)
    store.database.set_experiment_archived(numbers[0], True)

    def ids(**which: object) -> list[int]:
        return [found.id for found in client.get_experiments(**which)]  # type: ignore[arg-type]

    assert ids() == [*numbers[1:], running]
    assert ids(newest_first=True, archived=None) == [running, *numbers[::-1]]
    assert ids(archived=True) == [numbers[0]]
    assert ids(states=[RUNNING]) == ids(states=["RUNNING"]) == [running]
    assert ids(states=[]) == ids(name="elsewhere") == []
    assert ids(labels=["ocr"]) == [numbers[1], numbers[3]]
    assert ids(limit=3, archived=None) == numbers[:3]
    assert ids(name="TES", limit=1) == [numbers[1]]
    for wrong, message in (
        ({"states": ["DONE"]}, "unknown state 'DONE'; expected one of RUNNING"),
        ({"limit": 0}, "limit is 0; expected 1 or more"),
        ({"labels": "ocr"}, "expected a list of strings"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            ids(**wrong)


def test_trials_frame_is_dataframe(client: Determined, store: ClientStore) -> None:
    experiment = store.experiment()
    first = store.trial(experiment, rate=0.1, net={"width": 8})
    second = store.trial(experiment, rate=0.2)
    store.report(first, 10, {"loss": 0.1})
    store.report(first, 20, {"loss": 0.3})
    uuid = store.checkpoint(first, 30)
    store.report(second, 5, {"loss": -math.inf, "other": 1.0})
    table = client.get_experiment(experiment).trials_frame()
    assert list(table.index) == [first, second]
    assert list(table["hparams.rate"]) == [0.1, 0.2]
    assert list(table["state"]) == ["PAUSED", "PAUSED"]
    assert list(table["steps"]) == [30, 5]
    assert list(table["best_value"]) == [0.1, -math.inf]
    assert list(table["best_step"]) == [10, 5]
    assert table["checkpoint"][first] == uuid
    for column in ("hparams.net.width", "checkpoint"):
        assert table[column].isna().tolist() == [False, True]


def test_config_is_a_copy_without_secrets(client: Determined, store: ClientStore) -> None:
    storage = {"type": "s3", "bucket": "b", "secret_key": "hush"}
    number = store.experiment(checkpoint_storage=storage)
    experiment = client.get_experiment(number)
    config = experiment.get_config()
    assert config["checkpoint_storage"] == storage | {"secret_key": "********"}
    config["searcher"]["metric"] = "mine"
    assert experiment.get_config()["searcher"]["metric"] == "loss"


def test_best_checkpoints_have_distinct_trials(client: Determined, store: ClientStore) -> None:
    number = store.experiment()
    first, second, third = (store.trial(number) for _ in range(3))
    store.checkpoint(first, 10, {"loss": 0.5, "accuracy": 0.5})
    best = store.checkpoint(first, 20, {"loss": 0.1, "accuracy": 0.7})
    store.checkpoint(first, 30, {"loss": 0.2, "accuracy": 0.6})
    middle = store.checkpoint(second, 10, {"loss": 0.15, "accuracy": 0.9})
    last = store.checkpoint(third, 10, {"loss": 0.9, "accuracy": 0.1})
    experiment = client.get_experiment(number)
    assert experiment.top_checkpoint().uuid == best
    assert uuids(experiment.top_n_checkpoints(2)) == [best, middle]
    assert uuids(experiment.top_n_checkpoints(limit=9)) == [best, middle, last]
    # The default direction is the experiment's, for any metric.
    assert uuids(experiment.top_n_checkpoints(9, sort_by="accuracy"))[0] == last
    assert experiment.top_checkpoint("accuracy", smaller_is_better=False).uuid == middle
    assert experiment.top_checkpoint("loss", False).uuid == last
    # A direction without a metric is ignored.
    assert experiment.top_checkpoint(smaller_is_better=False).uuid == best


def test_ranking_uses_direction_of_experiment(client: Determined, store: ClientStore) -> None:
    number = store.experiment(metric="accuracy", smaller_is_better=False)
    trial = store.trial(number)
    store.checkpoint(trial, 10, {"accuracy": 0.1})
    high = store.checkpoint(trial, 20, {"accuracy": 0.9})
    assert client.get_experiment(number).top_checkpoint().uuid == high


def test_stand_in_is_returned_with_a_warning(client: Determined, store: ClientStore) -> None:
    number = store.experiment()
    first, second = store.trial(number), store.trial(number)
    worse = store.checkpoint(first, 10, {"loss": 0.9})
    store.report(second, 15, {"loss": 0.5})
    store.checkpoint(second, 10)
    later = store.checkpoint(second, 20)
    experiment = client.get_experiment(number)
    with pytest.warns(UserWarning, match=r"is of step 20, but its loss of 0\.5 is of step 15"):
        assert experiment.top_checkpoint().uuid == later
    with pytest.warns(UserWarning, match="is of step 20"):
        assert uuids(experiment.top_n_checkpoints(2)) == [later, worse]
    with pytest.warns(UserWarning, match="is of step 20"):
        assert client.get_trial(second).select_checkpoint(best=True).uuid == later


def append_validation(store: ClientStore, trial: int, steps: int) -> None:
    """Report like a worker that is killed before its report is in the database."""
    folder = store.database.get_trial(trial).trial_dir
    run = store.database.start_run(trial)
    log = EventLog(Path(str(folder)) / f"events-{run}.jsonl", trial_id=trial, run_id=run)
    log.append("validation", {"steps_completed": steps, "metrics": {"loss": 0.5}})
    log.close()


def test_reports_of_killed_worker_are_read(client: Determined, store: ClientStore) -> None:
    number = store.experiment(state=RUNNING)
    first, second = store.trial(number), store.trial(number)
    uuids = [store.checkpoint(trial, 10) for trial in (first, second)]
    append_validation(store, second, 10)
    best = client.get_experiment(number).top_checkpoint()
    assert (best.uuid, best.training.validation_metrics) == (uuids[1], {"loss": 0.5})
    append_validation(store, first, 10)
    store.database.set_trial_state(first, PAUSED)
    (report,) = client.get_trial(first).stream_validation_metrics()
    assert report.metrics == {"loss": 0.5}


def test_unknown_metric_is_an_error(client: Determined, store: ClientStore) -> None:
    number = store.experiment()
    store.checkpoint(store.trial(number), 10, {"loss": 1.0, "accuracy": 0.5})
    experiment = client.get_experiment(number)
    with pytest.raises(NoCheckpointError, match=r"'acuracy'[\s\S]*metrics: accuracy, loss"):
        experiment.top_checkpoint("acuracy")
    with pytest.raises(AssertionError, match="acuracy"):
        experiment.top_n_checkpoints(3, sort_by="acuracy")
    with pytest.raises(InvalidArgumentError, match="sort_by is ''"):
        experiment.top_checkpoint("")


def test_no_complete_checkpoint_is_an_error(client: Determined, store: ClientStore) -> None:
    number = store.experiment()
    uuid = store.checkpoint(store.trial(number), 10, {"loss": 1.0})
    client.get_checkpoint(uuid).delete()
    with pytest.raises(AssertionError, match=f"experiment {number} has no complete checkpoint"):
        client.get_experiment(number).top_checkpoint()


@pytest.mark.parametrize("limit", [0, -1, True, 1.5])
def test_limit_must_be_positive(client: Determined, store: ClientStore, limit: int) -> None:
    experiment = client.get_experiment(store.experiment())
    with pytest.raises(InvalidArgumentError, match="limit is"):
        experiment.top_n_checkpoints(limit)


def test_lists_of_trials_are_complete_and_sorted(client: Determined, store: ClientStore) -> None:
    number = store.experiment()
    trials = [store.trial(number, rate=index) for index in range(5)]
    store.database.set_trial_state(trials[3], ExperimentState.ERROR)
    store.database.count_restart(trials[1])
    experiment = client.get_experiment(number)
    listed = experiment.get_trials()
    assert [trial.id for trial in listed] == trials
    assert [trial.hparams["rate"] for trial in listed] == list(range(5))
    backwards = experiment.get_trials(order_by=OrderBy.DESC)
    assert [trial.id for trial in backwards] == trials[::-1]
    restarts = experiment.get_trials(TrialSortBy.RESTARTS, OrderBy.DESCENDING)
    assert restarts[0].id == trials[1]
    # Trials without an end come last in both directions.
    for order in OrderBy:
        assert experiment.get_trials(TrialSortBy.END_TIME, order)[0].id == trials[3]


def test_wait_returns_how_it_ended(client: Determined, store: ClientStore) -> None:
    number = store.experiment(state=ExperimentState.ERROR)
    assert client.get_experiment(number).wait() is ExperimentState.ERROR
    running = store.experiment(state=RUNNING)
    timer = threading.Timer(
        0.1, store.database.set_experiment_state, (running, ExperimentState.CANCELED)
    )
    timer.start()
    assert client.get_experiment(running).wait(interval=0.02) == "CANCELED"
    timer.join()


def test_wait_fails_when_nothing_runs(client: Determined, store: ClientStore) -> None:
    experiment = client.get_experiment(store.experiment(state=PAUSED))
    with pytest.raises(ValueError, match="is paused, so it will not end"):
        experiment.wait()
    running = store.experiment(state=RUNNING)
    store.release_lock(running)
    with pytest.raises(ExperimentPausedError, match="its process has exited"):
        client.get_experiment(running).wait()
    with pytest.raises(InvalidArgumentError, match="interval is 0"):
        experiment.wait(interval=0)


def test_await_first_trial(client: Determined, store: ClientStore) -> None:
    number = store.experiment(state=RUNNING)
    timer = threading.Timer(0.1, store.trial, (number,))
    timer.start()
    assert client.get_experiment(number).await_first_trial(interval=0.02).experiment_id == number
    timer.join()
    over = store.experiment()
    with pytest.raises(RunError, match="is COMPLETED and has no trial"):
        client.get_experiment(over).await_first_trial()
    deleted = store.experiment(state=RUNNING)
    store.release_lock(deleted)
    with pytest.raises(RunError, match="has no trial"):
        client.get_experiment(deleted).await_first_trial()


@pytest.mark.parametrize("action", ["pause", "cancel", "kill"])
def test_control_requests_reach_runner(client: Determined, store: ClientStore, action: str) -> None:
    number = store.experiment(state=RUNNING)
    getattr(client.get_experiment(number), action)()
    assert store.database.get_control_request(number) is Control(action)


def test_control_without_runner_updates_records(client: Determined, store: ClientStore) -> None:
    number = store.experiment(state=RUNNING)
    store.release_lock(number)
    experiment = client.get_experiment(number)
    experiment.pause()
    assert experiment.state is PAUSED
    experiment.kill()
    assert experiment.state == "CANCELED"
    with pytest.raises(RunError, match="has ended"):
        experiment.pause()


def test_archive(client: Determined, store: ClientStore) -> None:
    number = store.experiment()
    experiment = client.get_experiment(number)
    experiment.archive()
    assert store.database.get_experiment(number).archived
    experiment.unarchive()
    assert not store.database.get_experiment(number).archived


def test_delete_leaves_nothing(client: Determined, store: ClientStore) -> None:
    number, other = store.experiment(), store.experiment()
    trial = store.trial(number)
    uuid = store.checkpoint(trial, 10, {"loss": 1.0})
    checkpoint_uuid = store.checkpoint(store.trial(other), 10, {"loss": 1.0})
    save_secrets(store.home, number, {"checkpoint_storage": {"secret_key": "hush"}})
    experiment = client.get_experiment(number)
    experiment.delete()
    assert not store.files(uuid).exists()
    assert not (store.home / "experiments" / str(number)).exists()
    for deleted in (lambda: client.get_experiment(number), lambda: client.get_trial(trial)):
        with pytest.raises(NotFoundError):
            deleted()
    with pytest.raises(NotFoundError):
        client.get_checkpoint(uuid)
    assert store.files(checkpoint_uuid).exists()
    assert client.get_experiment(other).top_checkpoint().uuid == checkpoint_uuid
    assert store.experiment() > other


@pytest.mark.parametrize("action", ["delete", "cancel"])
def test_delete_waits_for_exiting_runner(
    client: Determined, store: ClientStore, action: str
) -> None:
    number = store.experiment(state=PAUSED)
    begun, leaves = threading.Event(), threading.Event()

    def end() -> None:
        store.take_lock(number)
        begun.set()
        leaves.wait(60)
        store.release_lock(number)

    runner = threading.Thread(target=end)
    runner.start()
    assert begun.wait(60)
    timer = threading.Timer(0.5, leaves.set)
    timer.start()
    getattr(client.get_experiment(number), action)()
    assert leaves.is_set()
    timer.join()
    runner.join()


def test_complete_experiment_cannot_be_activated(
    client: Determined, store: ClientStore, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="is complete and cannot be resumed"):
        client.get_experiment(store.experiment()).activate()
    running = client.get_experiment(store.experiment(state=RUNNING))
    running.activate()  # it is running already
    assert running.state is RUNNING
