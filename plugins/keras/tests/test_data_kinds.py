"""The kinds of training data: what they feed, where they go on, and what bad data gets."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _fakes import FakeClock, SmallTrial, make_context, records, seed_everything

from detcore.data import IndexSampler, LedgerWriter
from detcore.errors import DataError
from detcore_keras.data.array_feed import ArrayFeed
from detcore_keras.data.dataset_feed import DatasetFeed
from detcore_keras.frameworks import keras, tf
from detcore_keras.keras_controller import KerasController
from detcore_replay import verify_ledger

RECORDS = np.arange(52, dtype="float32")


def _base() -> Any:
    return tf.data.Dataset.from_tensor_slices(RECORDS)


def _interleaved() -> Any:
    files = tf.data.Dataset.range(6).shuffle(6)
    return files.interleave(
        lambda f: _base().take(10).map(lambda r: r + 100 * tf.cast(f, tf.float32))
    )


def _captured(source: Any) -> Any:
    """Return a dataset with a function that reads one shuffled dataset again for each record."""
    shuffled = _base().take(17).shuffle(17)
    return source.flat_map(lambda x: shuffled.map(lambda r: r + 100 * tf.cast(x, tf.float32)))


def _elements() -> Any:
    """Return the records of a shuffled dataset that is itself an element."""
    shuffled = _base().take(17).shuffle(17)
    return tf.data.Dataset.from_tensors(shuffled).repeat(3).flat_map(lambda part: part)


PIPELINES: dict[str, Callable[[], Any]] = {
    "plain": lambda: _base().batch(8),
    "shuffle": lambda: _base().shuffle(52).batch(8),
    "prefetch": lambda: _base().shuffle(20).batch(8).prefetch(4),
    "two shuffles": lambda: _interleaved().shuffle(15).batch(8).prefetch(tf.data.AUTOTUNE),
    "cache": lambda: _base().cache().shuffle(52).batch(8),
    "shuffle before cache": lambda: _base().shuffle(52).cache().shuffle(10).batch(8),
    "unknown length": lambda: _base().filter(lambda r: r > 3).shuffle(52).batch(8),
    "captured shuffle": lambda: _captured(tf.data.Dataset.range(3)).batch(8),
    "captured shuffle, shuffled": lambda: _captured(tf.data.Dataset.range(3).shuffle(3)).batch(8),
    "shuffle as an element": lambda: _elements().batch(8),
    "python": lambda: (
        _base().shuffle(52).map(lambda r: tf.numpy_function(lambda v: v, [r], tf.float32)).batch(8)
    ),
    "own repeat": lambda: _base().shuffle(52).batch(8).repeat(),
    "parallel map": lambda: (
        _base().shuffle(52).map(lambda r: r * 2, num_parallel_calls=2).batch(8, drop_remainder=True)
    ),
}


def feed_of(name: str) -> DatasetFeed:
    keras.utils.set_random_seed(5)
    return DatasetFeed(PIPELINES[name](), with_ledger=False)


def take(feed: DatasetFeed, count: int) -> list[np.ndarray]:
    found = []
    while len(found) < count:
        inputs, available = feed.block(count - len(found))
        for _ in range(available):
            found.append(np.asarray(feed.fetch(inputs, 0)))
        feed.advance(available, {})
    return found


@pytest.mark.parametrize("name", PIPELINES)
def test_dataset_goes_on_where_it_was(tmp_path: Path, name: str) -> None:
    whole = take(feed_of(name), 32)
    for position in (0, 3, 5, 6, 7, 8, 12, 13, 14, 20):
        first = feed_of(name)
        take(first, position)
        folder = tmp_path / str(position)
        folder.mkdir()
        state = json.loads(json.dumps(first.save(folder)))
        second = feed_of(name)
        second.restore(folder, state)
        rest = take(second, 32 - position)
        assert [batch.tolist() for batch in rest] == [b.tolist() for b in whole[position:]]


@pytest.mark.parametrize("name", PIPELINES)
def test_dataset_finds_a_batch_without_a_saved_state(name: str) -> None:
    """As after a checkpoint of another number of workers."""
    whole = take(feed_of(name), 24)
    for position in (0, 3, 6, 7, 14, 20):
        feed = feed_of(name)
        feed.seek(position)
        rest = take(feed, 24 - position)
        assert feed.position == 24
        assert [batch.tolist() for batch in rest] == [b.tolist() for b in whole[position:]]


@pytest.mark.parametrize("data_kind", ["arrays", "sequence", "tf.data"])
def test_ledger_has_every_record_once_per_epoch(tmp_path: Path, data_kind: str) -> None:
    seed_everything()
    with contextlib.closing(
        LedgerWriter(tmp_path / "ledger-1.bin", run_id=1, start_step=0)
    ) as ledger:
        context = make_context(tmp_path, ledger=ledger)
        trial = type("Trial", (SmallTrial,), {"data_kind": data_kind})(context)
        controller = KerasController(trial, context)
        controller.run(FakeClock(controller, until=14, unit=5))
        controller.close()
    report = verify_ledger(tmp_path)
    assert [(epoch.num_twice, epoch.num_never) for epoch in report.epochs] == [(0, 0), (0, 0)]
    assert report.is_proved


def test_large_arrays_are_never_copied_whole(tmp_path: Path) -> None:
    """A memory-mapped file feeds training through blocks of some batches."""
    x, y = records()
    stored = np.memmap(tmp_path / "x", dtype="float32", mode="w+", shape=x.shape)
    stored[:] = x
    feed = ArrayFeed((stored, y), IndexSampler(52, 8, shuffle=True, seed=1))
    feed._block_batches = 2
    found = []
    while feed.position < 7:
        inputs, count = feed.block(7 - feed.position)
        assert count <= 2
        found += [np.asarray(feed.fetch(inputs, index)[0]) for index in range(count)]
        feed.advance(count, {})
    order = np.concatenate(feed._sampler.batches(0, 7))
    assert np.array_equal(np.concatenate(found), x[order])
    assert [len(batch) for batch in found] == [8, 8, 8, 8, 8, 8, 4]
    assert feed.records == 52


def test_skipping_far_ahead_in_arrays_is_quick() -> None:
    x, y = records(1000)
    feed = ArrayFeed((x, y), IndexSampler(1000, 8, shuffle=True, seed=1))
    started = time.process_time()
    state = {"kind": "arrays", "num_records": 1000, "batches": 1_000_000}
    feed.restore(Path("unused"), state)
    feed.block(1)
    assert time.process_time() - started < 0.5


def test_position_of_other_data_is_refused() -> None:
    x, y = records()
    feed = ArrayFeed((x, y), IndexSampler(52, 8, shuffle=True, seed=1))
    with pytest.raises(
        DataError, match=r"arrays with 51 records, but the trial now has arrays with 52"
    ):
        feed.restore(Path("unused"), {"kind": "arrays", "num_records": 51, "batches": 3})
