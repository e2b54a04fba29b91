"""Experiments, trials, runs and checkpoints."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from detcore.errors import DatabaseError, NotFoundError
from detcore.log.events import (
    CheckpointDeleted,
    CheckpointDeleting,
    CheckpointStarted,
)
from detcore.records import Database, ExperimentRecord
from detcore.records.queries import describe_ids
from detcore.types import ExperimentState, TrialState

if TYPE_CHECKING:
    from databases import Places
    from tests.records.conftest import Store

PROGRAMS = Path(__file__).parent / "programs"


def test_experiment_record_is_preserved(store: Store) -> None:
    config = {"a": [1, 2.5, None, True], "text": "NaN", "limit": math.inf, "ü": {"b": "c"}}
    number = store.database.create_experiment(
        config=config, config_text="a: 1 # ü\n", model_dir="/code", name="second"
    )
    record = store.database.get_experiment(number)
    assert record.config == config
    assert (record.id, record.name, record.model_dir) == (2, "second", "/code")
    assert record.config_text == "a: 1 # ü\n"
    assert record.state is ExperimentState.RUNNING
    assert record.created_at.tzinfo is not None
    assert record.ended_at is None
    assert [row.id for row in store.database.list_experiments()] == [1, 2]


def test_states_change_and_errors_are_cleared(store: Store) -> None:
    database = store.database
    database.set_experiment_state(1, ExperimentState.ERROR, error="it broke")
    database.set_trial_state(1, TrialState.ERROR, error="it broke")
    experiment, trial = database.get_experiment(1), database.get_trial(1)
    assert (experiment.state, experiment.error) == (ExperimentState.ERROR, "it broke")
    assert (trial.state, trial.error) == (TrialState.ERROR, "it broke")
    assert experiment.ended_at is not None
    assert trial.ended_at is not None
    database.set_experiment_state(1, ExperimentState.RUNNING)
    database.start_run(1)
    experiment, trial = database.get_experiment(1), database.get_trial(1)
    assert (experiment.state, experiment.error, experiment.ended_at) == (
        ExperimentState.RUNNING,
        None,
        None,
    )
    assert (trial.state, trial.error, trial.ended_at) == (TrialState.RUNNING, None, None)


def test_trials_and_their_runs(store: Store) -> None:
    database = store.database
    second = database.create_trial(experiment_id=1, hparams={"lr": 0.1}, seed=2**31 - 1)
    database.set_trial_dir(second, "/t")
    trial = database.get_trial(second)
    assert (trial.state, trial.run_id) == (TrialState.PAUSED, 0)
    assert (trial.hparams, trial.seed, trial.trial_dir) == ({"lr": 0.1}, 2**31 - 1, "/t")
    assert [database.start_run(second) for _ in range(3)] == [1, 2, 3]
    trial = database.get_trial(second)
    assert (trial.run_id, trial.state) == (3, TrialState.RUNNING)
    assert [run.run_id for run in database.list_runs(second)] == [1, 2, 3]
    assert [(row.id, row.run_id) for row in database.list_trials(1)] == [(1, 1), (2, 3)]
    database.set_trial_dir(second, "/elsewhere")
    assert database.get_trial(second).trial_dir == "/elsewhere"


def test_unknown_id_error_lists_valid_ids(store: Store) -> None:
    database = store.database
    for _ in range(4):
        database.create_experiment(config={}, config_text=None, model_dir="/m", name="n")
    with pytest.raises(NotFoundError, match=r"no experiment 9 in .*\nExperiments there: 1-5\."):
        database.get_experiment(9)
    with pytest.raises(NotFoundError, match=r"no experiment 9"):
        database.set_experiment_state(9, ExperimentState.ERROR)
    with pytest.raises(NotFoundError, match=r"no experiment 9"):
        database.list_trials(9)
    with pytest.raises(NotFoundError, match=r"no experiment 9"):
        database.create_trial(experiment_id=9, hparams={}, seed=0)
    with pytest.raises(NotFoundError, match=r"no trial 9 in .*\nTrials there: 1\."):
        database.get_trial(9)
    with pytest.raises(NotFoundError, match=r"no trial 9"):
        database.start_run(9)
    with pytest.raises(NotFoundError, match=r"no trial 9"):
        database.set_trial_dir(9, "/x")
    with pytest.raises(NotFoundError, match=r"no trial 9"):
        database.metrics(9, "training")
    assert database.list_trials(2) == []


def test_empty_database_error_has_start_command(places: Places) -> None:
    with (
        Database.open(places.new()) as database,
        pytest.raises(NotFoundError, match=r"no experiments yet in .*\nStart an experiment: "),
    ):
        database.get_experiment(1)


def test_ids_are_described_as_ranges() -> None:
    assert describe_ids([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
    assert describe_ids(range(0, 100, 2)).startswith("..., 60, 62")


def test_trials_are_read_by_ids(store: Store) -> None:
    database = store.database
    first, second = (database.create_trial(experiment_id=1, hparams={}, seed=0) for _ in range(2))
    assert database.get_trials([second, first, 99]) == {
        first: database.get_trial(first),
        second: database.get_trial(second),
    }


CREATE_AND_WAIT = """
import sys
from pathlib import Path
from detcore.records import Database
from detcore.types import ExperimentState
with Database.open(sys.argv[1]) as database:
    number = database.create_experiment(config={}, config_text=None, model_dir="/m", name="n")
    lock = database.open_lock(number, Path(sys.argv[2]))
    assert lock.acquire()
    print(number, flush=True)
    if sys.stdin.readline() == "complete\\n":
        database.set_experiment_state(number, ExperimentState.COMPLETED)
"""


@pytest.mark.parametrize("last_word", ["complete", "nothing"])
def test_experiment_that_ends_during_observation(
    store: Store, monkeypatch: pytest.MonkeyPatch, last_word: str
) -> None:
    database = store.database
    process = subprocess.Popen(
        [sys.executable, "-c", CREATE_AND_WAIT, store.url, str(store.home)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    number = int(process.stdout.readline())
    assert database.observe_experiment(number)[1] is True
    read = database.get_experiment

    def read_before_it_ends(experiment_id: int) -> ExperimentRecord:
        record = read(experiment_id)
        if process.poll() is None:
            process.communicate(f"{last_word}\n")
        return record

    monkeypatch.setattr(database, "get_experiment", read_before_it_ends)
    record, is_alive = database.observe_experiment(number)
    assert not is_alive
    assert record.state == ("COMPLETED" if last_word == "complete" else "RUNNING")
    assert record == read(number)


def test_threads_share_one_database(store: Store) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                store.database.start_run(store.trial_id)
                store.database.get_trial(store.trial_id)
        except BaseException as error:  # noqa: BLE001  (told below)
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.database.get_trial(store.trial_id).run_id == 1 + 6 * 20


def test_checkpoint_states_from_start_to_deletion(store: Store) -> None:
    database = store.database
    store.begin("abc1", steps=5)
    record = database.get_checkpoint("abc1")
    assert (record.state, record.steps_completed, record.committed_at) == ("ACTIVE", 5, None)
    assert database.latest_checkpoint(1) is None
    store.commit("abc1", steps=6)
    store.commit("abc1", steps=6)
    record = database.get_checkpoint("abc1")
    assert (record.state, record.steps_completed, record.size_bytes) == ("COMPLETED", 6, 7)
    assert record.metadata == {"n": 1}
    assert record.resources == {"a": 3, "b/c": 4}
    assert (record.trial_id, record.experiment_id, record.storage_url) == (1, 1, "file:///ck")
    latest = database.latest_checkpoint(1)
    assert latest is not None
    assert latest.uuid == "abc1"
    database.record_checkpoint(CheckpointDeleted(uuid="abc1", resources={"a": 3}))
    record = database.get_checkpoint("abc1")
    assert (record.state, record.resources) == ("PARTIALLY_DELETED", {"a": 3})
    assert database.latest_checkpoint(1) is None
    database.record_checkpoint(CheckpointDeleted(uuid="abc1", resources={}))
    record = database.get_checkpoint("abc1")
    assert (record.state, record.resources, record.metadata) == ("DELETED", {}, {"n": 1})
    assert record.deleted_at is not None


def test_late_commit_does_not_revive_checkpoint(store: Store) -> None:
    store.begin("abc1")
    store.commit("abc1")
    for change in (CheckpointDeleting(uuid="abc1"), CheckpointDeleted(uuid="abc1", resources={})):
        store.database.record_checkpoint(change)
        store.commit("abc1")
        assert store.database.get_checkpoint("abc1").state == change.KIND[11:].upper()
        assert store.database.get_checkpoint("abc1").resources == {}


def test_checkpoints_are_found_by_uuid_prefix(store: Store) -> None:
    for uuid in ("aa11", "aa12", "ab", "abc", "x_y", "xzy"):
        store.begin(uuid)
    database = store.database
    assert database.get_checkpoint("aa11").uuid == "aa11"
    assert database.get_checkpoint("ab").uuid == "ab"
    assert database.get_checkpoint("x_").uuid == "x_y"
    with pytest.raises(NotFoundError, match="'aa' is a prefix of 2 checkpoints: aa11, aa12"):
        database.get_checkpoint("aa")
    with pytest.raises(NotFoundError, match=r"'q' is recorded.\nNewest checkpoints: x"):
        database.get_checkpoint("q")
    with pytest.raises(NotFoundError, match="no checkpoint 'a' is recorded"):
        store.commit("a")
    with pytest.raises(NotFoundError, match="no checkpoint 'a' is recorded"):
        database.add_checkpoint_metadata("a", {})
    for number in range(12):
        store.begin(f"many{number}")
    with pytest.raises(NotFoundError, match="prefix of 10 or more checkpoints: many0, "):
        database.get_checkpoint("many")


def test_latest_checkpoint_has_most_steps(store: Store) -> None:
    database = store.database
    other = database.create_trial(experiment_id=1, hparams={}, seed=0)
    for uuid, steps in (("a", 10), ("b", 30), ("c", 20)):
        store.begin(uuid, steps)
        store.commit(uuid, steps)
    store.begin("d", 40)
    database.record_checkpoint(
        CheckpointStarted(uuid="e", storage_url="s", steps_completed=1), trial_id=other
    )
    latest = database.latest_checkpoint(1)
    assert latest is not None
    assert latest.uuid == "b"
    assert [row.uuid for row in database.list_checkpoints()] == list("abcde")
    assert [row.uuid for row in database.list_checkpoints(trial_id=1)] == list("abcd")
    assert [row.uuid for row in database.list_checkpoints(states=["ACTIVE"])] == ["d", "e"]
    assert len(database.list_checkpoints(experiment_id=1)) == 5
    assert database.list_checkpoints(experiment_id=2) == []


def test_checkpoint_is_recorded_once(store: Store) -> None:
    store.begin("a")
    with pytest.raises(DatabaseError, match="cannot record checkpoint a of trial 1"):
        store.begin("a")
    with pytest.raises(DatabaseError, match="the trial does not exist"):
        store.database.record_checkpoint(
            CheckpointStarted(uuid="z", storage_url="s", steps_completed=1), trial_id=77
        )
