"""The kinds of training data: batches, resumed positions, and errors for bad data."""

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
from tensorflow_names import keras, tf

from detcore.data import IndexSampler, LedgerWriter
from detcore.errors import DataError
from detcore_keras.data.array_feed import ArrayFeed
from detcore_keras.data.dataset_feed import DatasetFeed
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
    """Return a dataset whose function reads a shuffled dataset again for each record."""
    shuffled = _base().take(17).shuffle(17)
    return source.flat_map(lambda x: shuffled.map(lambda r: r + 100 * tf.cast(x, tf.float32)))


def _elements() -> Any:
    """Return the records of a shuffled dataset that is an element of another dataset."""
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
    batches = []
    while len(batches) < count:
        inputs, available = feed.next_block(count - len(batches))
        for _ in range(available):
            batches.append(np.asarray(feed.fetch_batch(inputs, 0)))
        feed.advance(available, {})
    return batches


@pytest.mark.parametrize("name", PIPELINES)
def test_dataset_feed_restores_position(tmp_path: Path, name: str) -> None:
    all_batches = take(feed_of(name), 32)
    for position in (0, 3, 5, 6, 7, 8, 12, 13, 14, 20):
        first = feed_of(name)
        take(first, position)
        folder = tmp_path / str(position)
        folder.mkdir()
        state = json.loads(json.dumps(first.save(folder)))
        second = feed_of(name)
        second.restore(folder, state)
        later_batches = take(second, 32 - position)
        assert [batch.tolist() for batch in later_batches] == [
            b.tolist() for b in all_batches[position:]
        ]


@pytest.mark.parametrize("name", PIPELINES)
def test_dataset_feed_seeks_without_saved_state(name: str) -> None:
    """A checkpoint from another number of workers has no saved state for this worker."""
    all_batches = take(feed_of(name), 24)
    for position in (0, 3, 6, 7, 14, 20):
        feed = feed_of(name)
        feed.seek(position)
        later_batches = take(feed, 24 - position)
        assert feed.position == 24
        assert [batch.tolist() for batch in later_batches] == [
            b.tolist() for b in all_batches[position:]
        ]


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


def test_large_arrays_are_read_in_blocks(tmp_path: Path) -> None:
    """A memory-mapped file is fed in blocks of a few batches."""
    x, y = records()
    stored = np.memmap(tmp_path / "x", dtype="float32", mode="w+", shape=x.shape)
    stored[:] = x
    feed = ArrayFeed((stored, y), IndexSampler(52, 8, shuffle=True, seed=1))
    feed._block_batches = 2
    batches = []
    while feed.position < 7:
        inputs, count = feed.next_block(7 - feed.position)
        assert count <= 2
        batches += [np.asarray(feed.fetch_batch(inputs, index)[0]) for index in range(count)]
        feed.advance(count, {})
    order = np.concatenate(feed._sampler.batches(0, 7))
    assert np.array_equal(np.concatenate(batches), x[order])
    assert [len(batch) for batch in batches] == [8, 8, 8, 8, 8, 8, 4]
    assert feed.records == 52


def test_array_feed_skips_quickly() -> None:
    x, y = records(1000)
    feed = ArrayFeed((x, y), IndexSampler(1000, 8, shuffle=True, seed=1))
    started = time.process_time()
    state = {"kind": "arrays", "num_records": 1000, "batches": 1_000_000}
    feed.restore(Path("unused"), state)
    feed.next_block(1)
    assert time.process_time() - started < 0.5


def test_position_of_other_data_is_rejected() -> None:
    x, y = records()
    feed = ArrayFeed((x, y), IndexSampler(52, 8, shuffle=True, seed=1))
    with pytest.raises(
        DataError, match=r"arrays with 51 records, but the trial now has arrays with 52"
    ):
        feed.restore(Path("unused"), {"kind": "arrays", "num_records": 51, "batches": 3})
