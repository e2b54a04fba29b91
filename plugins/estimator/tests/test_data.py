"""Restore the position in the training dataset exactly."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_pipelines import PIPELINES, SEED, Reading, as_plain, from_generator
from estimator_models import run_python

from detcore.data import LedgerWriter
from detcore.errors import DataError, InvalidDataTypeError, InvalidExperimentError, LedgerError
from detcore_estimator.data.graph_feed import GraphFeed, check_dataset
from detcore_estimator.tensorflow_versions import tf, tf1
from detcore_replay import verify_ledger

pytestmark = pytest.mark.filterwarnings("ignore:Seed 11 from outer graph:UserWarning")


def _repeated(name: str) -> list[Any]:
    """Return the batches of ``dataset.repeat()``, without detcore."""
    make, count = PIPELINES[name]
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(SEED)
        iterator = tf1.data.make_initializable_iterator(make().repeat())
        batch = tf.nest.flatten(iterator.get_next(), expand_composites=True)
        tables = tf1.tables_initializer()
    with tf1.Session(graph=graph) as session:
        session.run([tables, iterator.initializer])
        return [[as_plain(part) for part in session.run(batch)] for _ in range(count)]


@pytest.mark.parametrize("name", PIPELINES)
def test_reading_equals_repeat_and_resumes(name: str, tmp_path: Path) -> None:
    # Save at the start, in the middle and at the end of an epoch, and after a partial batch. Saves
    # do not change the reading, and a restored reading can be saved and restored again.
    make, count = PIPELINES[name]
    positions = [0, 2, 3, 4, 6] if count < 50 else [1, 38, 40, 45, 50]
    expected = _repeated(name)
    with Reading(make).begin() as reading:
        num_read = 0
        for position in positions:
            assert reading.read(position - num_read) == expected[num_read:position]
            num_read = position
            state = reading.save(tmp_path / str(position))
            with Reading(make).restore(tmp_path / str(position), state) as restored:
                assert restored.feed.position == position
                assert restored.read(1) == expected[position : position + 1]
                if position == positions[1]:
                    again = restored.save(tmp_path / "again")
                assert restored.read(count - position - 1) == expected[position + 1 :]
        assert reading.read(count - num_read) == expected[num_read:]
    with Reading(make).restore(tmp_path / "again", again) as restored:
        assert restored.read(count - positions[1] - 1) == expected[positions[1] + 1 :]


def test_resume_in_a_process_with_v1_behavior(tmp_path: Path) -> None:
    names = [
        "shuffle",
        "shuffle repeat batch",
        "shuffle batch repeat",
        "shuffled twice",
        "cache, shuffle",
        "random map",
        "filter",
        "table",
        "shuffled in a function",
    ]
    for action in ("save", "restore"):
        run_python("data_pipelines.py", action, tmp_path, *names)
    expected, restored = (
        json.loads((tmp_path / f"{action}.json").read_text()) for action in ("save", "restore")
    )
    assert len(expected) == 3 * len(names)
    for name, batches in expected.items():
        assert restored[name] == batches, name


def test_iterator_state_is_saved(tmp_path: Path) -> None:
    """It is not saved if all records were read ahead. They are then read again."""

    def shuffled() -> Any:
        return tf.data.Dataset.range(90).shuffle(60)

    pipelines = {
        "shuffle": lambda: shuffled().batch(2),
        "filter": lambda: shuffled().filter(lambda x: tf.not_equal(x % 3, 0)).batch(2),
        "all read ahead": PIPELINES["shuffle"][0],
        "shuffle repeat batch": PIPELINES["shuffle repeat batch"][0],
        "many shuffled twice": PIPELINES["many shuffled twice"][0],
    }
    for name, make in pipelines.items():
        with Reading(make).begin() as reading:
            reading.read(2)
            place = tmp_path / name
            is_used = name != "all read ahead"
            assert reading.save(place)["iterator"] is is_used, name
            assert any(place.iterdir()) is is_used


def test_replay_is_logged_and_writes_no_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, _ = PIPELINES["generator"]
    with Reading(make).begin() as reading:
        reading.read(2)
        with caplog.at_level(logging.WARNING, "detcore.estimator"):
            state = reading.save(tmp_path / "a")
            reading.save(tmp_path / "b")
    assert [record.getMessage() for record in caplog.records] == [
        "the state of the training data's tf.data pipeline cannot be saved (its functions call "
        "Python); a resumed run will read it again from the start, up to its position"
    ]
    assert not list((tmp_path / "a").iterdir())
    caplog.clear()
    with caplog.at_level(logging.INFO, "detcore.estimator"), Reading(make) as reading:
        reading.restore(tmp_path / "a", state)
    assert "to continue at batch 2" in caplog.text


def assert_goes_on(make: Any, tmp_path: Path, *, saved_at: int, count: int) -> None:
    """Check that a restored reading returns the same batches."""
    with Reading(make).begin() as reading:
        expected = reading.read(count)
    with Reading(make).begin() as reading:
        reading.read(saved_at)
        state = reading.save(tmp_path / "a")
    with Reading(make).restore(tmp_path / "a", state) as reading:
        assert reading.read(count - saved_at) == expected[saved_at:]


def test_stateful_operation_in_pipeline(tmp_path: Path) -> None:
    # TensorFlow cannot save this stateful operation, which is neither random nor Python.
    def make() -> Any:
        dataset = tf.data.Dataset.range(9).shuffle(3)
        return dataset.map(lambda x: x + tf.cast(tf.timestamp() * 0, tf.int64)).batch(2)

    assert_goes_on(make, tmp_path, saved_at=6, count=14)


def test_generator_with_numpy_random_numbers(tmp_path: Path) -> None:
    def shuffled() -> Any:
        for number in np.random.permutation(7):
            yield number + np.random.randint(0, 1000) * 10

    def make() -> Any:
        return from_generator(shuffled).batch(3)

    np.random.seed(3)
    with Reading(make).begin() as reading:
        expected = reading.read(12)
    np.random.seed(3)
    with Reading(make).begin() as reading:
        reading.read(4)
        state, numbers = reading.save(tmp_path / "a"), np.random.get_state()
    np.random.seed(3)
    with Reading(make).restore(tmp_path / "a", state) as reading:
        np.random.set_state(numbers)
        assert reading.read(8) == expected[4:]


def test_length_of_an_epoch() -> None:
    with Reading(PIPELINES["shuffle"][0]) as reading:
        assert reading.feed.batches_per_epoch is None
        reading.begin()
        assert reading.feed.batches_per_epoch == 3
        assert reading.feed.ready(100) == 3
        reading.read(2)
        assert reading.feed.ready(100) == 1
    with Reading(PIPELINES["shuffle batch repeat"][0]).begin() as reading:
        assert reading.feed.batches_per_epoch is None
        assert reading.feed.ready(100) == 100
    with Reading(PIPELINES["filter"][0]).begin() as reading:
        reading.read(2)
        assert reading.feed.batches_per_epoch is None
        reading.read(2)
        assert reading.feed.batches_per_epoch == 3


def test_epochs_with_changing_length(tmp_path: Path) -> None:
    # The number of full batches depends on the order.
    def make() -> Any:
        records = tf.data.Dataset.range(12).shuffle(12)
        return records.group_by_window(
            lambda x: x % 3, lambda _, group: group.batch(3, drop_remainder=True), window_size=3
        ).filter(lambda group: group[0] < group[1])

    assert_goes_on(make, tmp_path, saved_at=7, count=16)


def test_restore_in_the_same_session(tmp_path: Path) -> None:
    for name in ("shuffle", "shuffle repeat batch", "random map", "cache, shuffle"):
        with Reading(PIPELINES[name][0]).begin() as reading:
            reading.read(4)
            state = reading.save(tmp_path / name)
            expected = reading.read(6)
            assert reading.restore(tmp_path / name, state).read(6) == expected


def test_empty_data() -> None:
    for make in (
        lambda: tf.data.Dataset.range(3).batch(5, drop_remainder=True),
        lambda: tf.data.Dataset.range(3).filter(lambda x: x > 5).batch(2),
    ):
        with Reading(make) as reading, pytest.raises(DataError, match="has 0 batches"):
            reading.begin().read(1)


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("range", r"with 5 batches, but the trial now has tf\.data with 3"),
        ("generator", "ended after 3 batches"),  # its length is unknown
    ],
)
def test_less_data(tmp_path: Path, kind: str, match: str) -> None:
    def first(count: int) -> Any:
        numbers = tf.data.Dataset.range(count)
        if kind == "generator":
            numbers = from_generator(lambda: iter(range(count)))
        return numbers.batch(2)

    with Reading(lambda: first(10)).begin() as reading:
        reading.read(4)
        state = reading.save(tmp_path / "a")
    with Reading(lambda: first(6)) as reading, pytest.raises(DataError, match=match):
        reading.restore(tmp_path / "a", state)


def test_structures() -> None:
    with tf.Graph().as_default():
        alone = GraphFeed(tf.data.Dataset.from_tensors({"a": [1.0], "b": [2]}), with_ledger=False)
        assert set(alone.features) == {"a", "b"}
        assert alone.labels is None
        pair = GraphFeed(tf.data.Dataset.from_tensors(([1.0], [2])), with_ledger=False)
        assert pair.features.dtype == tf.float32
        assert pair.labels.dtype == tf.int32
        assert pair.record_ids is None


def test_ledger_keeps_seeds_and_variables() -> None:
    def seeds(with_ledger: bool) -> list[Any]:
        with tf.Graph().as_default():
            tf1.set_random_seed(SEED)
            GraphFeed(PIPELINES["shuffle"][0](), with_ledger=with_ledger)
            assert not tf1.global_variables() + tf1.local_variables()
            return [tf.random.uniform([]).op.get_attr("seed2") for _ in range(2)]

    assert seeds(False) == seeds(True)


@pytest.mark.parametrize("name", ["shuffle", "pairs", "filter", "strings"])
def test_ledger_proves_a_resumed_run(name: str, tmp_path: Path) -> None:
    make, _ = PIPELINES[name]

    def run(run_id: int, start: int, count: int, reading: Reading) -> None:
        path = tmp_path / f"ledger-{run_id}.bin"
        ledger = LedgerWriter(path, run_id=run_id, start_step=start)
        reading.feed.describe(ledger)
        for _ in range(count):
            reading.feed.log(ledger, [reading.next(reading.feed.record_ids)])
        ledger.close()

    with Reading(make, with_ledger=True).begin() as reading:
        run(1, 0, 4, reading)
        state = reading.save(tmp_path / "a")
        following = reading.read(5)
    with Reading(make, with_ledger=True).restore(tmp_path / "a", state) as reading:
        run(2, 4, 5, reading)
    with Reading(make, with_ledger=True).restore(tmp_path / "a", state) as reading:
        assert reading.read(5) == following
    report = verify_ledger(tmp_path)
    assert report.is_proved, report.sentence()
    assert report.last_step == 9


def test_ledger_without_dense_tensors() -> None:
    with tf.Graph().as_default(), pytest.raises(LedgerError, match="no dense tensors"):
        GraphFeed(PIPELINES["sparse"][0](), with_ledger=True)


def test_random_parallel_map_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def make() -> Any:
        noisy = lambda x: tf.cast(x, tf.float32) + tf.random.uniform([])  # noqa: E731
        return tf.data.Dataset.range(4).map(noisy, num_parallel_calls=2).batch(2)

    with caplog.at_level(logging.WARNING, "detcore.estimator"), Reading(make).begin():
        assert "differ from run to run" in caplog.text


def test_check_dataset() -> None:
    with tf.Graph().as_default():
        wrapped, other = tf.data.Dataset.range(4), tf.data.Dataset.range(4)
        zipped = tf.data.Dataset.zip((other, wrapped))
        for dataset in (wrapped.shuffle(4).batch(2), zipped.batch(2)):
            check_dataset(dataset, [wrapped], "training", is_managed=True)
        check_dataset(other, [], "training", is_managed=False)
        for dataset, error, match in (
            (other.batch(2), InvalidExperimentError, "training input_fn .* was not wrapped"),
            ((tf.zeros([2]), tf.zeros([2])), InvalidDataTypeError, r"not a tf\.data\.Dataset"),
            (None, InvalidDataTypeError, r"returned None \(NoneType\), not a"),
            (tf.data.Dataset.zip((wrapped,) * 3), InvalidDataTypeError, "tuples of 3 parts"),
        ):
            with pytest.raises(error, match=match):
                check_dataset(dataset, [wrapped], "training", is_managed=True)


def test_ledger_of_endless_dataset_is_rejected(tmp_path: Path) -> None:
    def endless() -> Any:
        return tf.data.Dataset.range(6).batch(2).repeat()

    ledger = LedgerWriter(tmp_path / "ledger-1.bin", run_id=1, start_step=0)
    refused = pytest.raises(LedgerError, match=r"Remove repeat\(\)")
    with Reading(endless, with_ledger=True).begin() as reading, refused:
        reading.feed.describe(ledger)
    ledger.close()
