"""Grain data sets, in a module that Grain's processes can import."""

from __future__ import annotations

from typing import Any

import grain
import numpy as np
from absl import flags

NUM_RECORDS = 10
BATCH = 4

if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()  # Grain's processes read flags


class Noise(grain.transforms.RandomMap):
    def random_map(self, element: int, rng: np.random.Generator) -> Any:
        return np.array([element, rng.random()])


def records(epoch: int = 0) -> Any:
    return grain.MapDataset.source(range(NUM_RECORDS)).seed(epoch).shuffle().random_map(Noise())


def map_dataset(_: int) -> Any:
    return records().batch(BATCH)


def filtered(_: int) -> Any:
    """Return an ``IterDataset`` with a filter and a window shuffle."""
    dataset = records().to_iter_dataset().filter(lambda record: record[1] < 2)
    return grain.experimental.WindowShuffleIterDataset(dataset, window_size=3, seed=1).batch(BATCH)


def of_threads(num_threads: int, epoch: int) -> Any:
    options = grain.ReadOptions(num_threads=num_threads)
    return records(epoch).batch(BATCH).to_iter_dataset(options)


def of_processes(num_workers: int) -> Any:
    options = grain.MultiprocessingOptions(num_workers=num_workers)
    return records().to_iter_dataset().batch(BATCH).mp_prefetch(options)


def loader(num_workers: int, num_records: int = NUM_RECORDS) -> Any:
    return grain.DataLoader(
        data_source=range(num_records),
        sampler=grain.samplers.IndexSampler(
            num_records,
            num_epochs=1,
            shuffle=True,
            seed=3,
            shard_options=grain.sharding.NoSharding(),
        ),
        operations=[Noise(), grain.transforms.Batch(batch_size=BATCH)],
        worker_count=num_workers,
    )
