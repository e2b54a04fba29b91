"""A WebDataset that saves its shard and sample, and shuffles by a seed and the epoch."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from detcore.errors import DataError, describe
from detcore_torch.libraries import import_supported, torch
from detcore_torch.state.random_generators import seed_from

_OPENERS = frozenset({"StreamingOpen", "FileCache", "tarfile_samples"})
_REORDERING = frozenset({"_shuffle", "detshuffle", "islice"})
# Stages whose result follows from the shards and the seed, so they may run alone.
_OTHER_READING = (
    "SimpleShardList list single_node_only split_by_node split_by_worker tar_file_expander "
    "group_by_keys check_empty"
)
_READING = _OPENERS | _REORDERING | frozenset(_OTHER_READING.split())
# Stage functions that read a sample only when it is needed.
_LAZY_FUNCTIONS = (
    "_associate _batched _decode _extract_keys _info _log_keys _map _map_dict _map_tuple _rename "
    "_rename_keys _select _to_tuple _xdecode"
)
_LAZY = frozenset(_LAZY_FUNCTIONS.split())
_INEXACT = {
    "ResampledShards": "draws shards with replacement, so some records would be used twice in an "
    "epoch and others never",
    "MultiShardSample": "draws shards from a generator that is not seeded",
    "DirectoryShardList": "uses the shards that are in the directory at that moment",
    "RandomMix": "draws from a generator that is not seeded",
}


def is_webdataset(dataset: Any) -> bool:
    """Return whether a dataset is a WebDataset pipeline."""
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(dataset).__mro__}
    return "webdataset.pipeline.DataPipeline" in kinds


class ShardStream(torch.utils.data.IterableDataset):  # type: ignore[misc]  # no types here
    """The samples of a WebDataset, from any sample.

    The state is the number of completed shards and the number of samples after them. The shards are
    skipped without opening them, and the samples are read again without decoding them. Shuffled
    samples have no position in a shard, so all samples of the epoch up to the position are read
    again.

    Args:
        dataset: The WebDataset. It stays as it is.

    Attributes:
        has_place: Whether the position is known. If not, the epoch's batches are loaded again.
        reads_shards_again: Whether all shards up to the position are read again.
        num_read_again: Samples that the last iteration read again to restore its position.

    Raises:
        DataError: If the dataset's records cannot be the same in another run.
        PluginError: If the version of webdataset is not supported.
    """

    def __init__(self, dataset: Any) -> None:
        import_supported("webdataset", (0, 2), (2,), "webdataset")
        _check_stages(dataset)
        self._dataset = dataset
        self._stages = list(dataset.pipeline)
        names = [_name_stage(stage) for stage in self._stages]
        lazy = len(names)
        while lazy > 1 and names[lazy - 1] in _LAZY:
            lazy -= 1
        self._lazy = lazy
        self.has_place = _READING.issuperset(names[:lazy])
        openers = [index for index, name in enumerate(names[:lazy]) if name in _OPENERS]
        self._opener = openers[0] if openers else lazy
        self.reads_shards_again = not openers or not _REORDERING.isdisjoint(
            names[openers[0] : lazy]
        )
        self.num_read_again = 0
        self._place = (0, 0)

    def __repr__(self) -> str:
        return repr(self._dataset)

    def state_dict(self) -> dict[str, int]:
        """Return the position of the next sample."""
        return dict(zip(("shards", "samples"), self._place, strict=True))

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Start the next iteration from a position."""
        self._place = (state["shards"], state["samples"])

    def begin_epoch(self, seed: int, epoch: int) -> None:
        """Start the next iteration from the start of an epoch."""
        self._seed, self._epoch = seed, epoch
        self._place = (0, 0)

    def __iter__(self) -> Iterator[Any]:
        """Return the samples of the epoch from the position on."""
        first_shard, num_skipped = self._place
        stages = [self._seed_stage(index, stage) for index, stage in enumerate(self._stages)]
        invoke: Callable[..., Any] = self._dataset.invoke
        opened: list[str] = []
        samples: Iterator[Any] = iter(invoke(stages[0]))
        for index, stage in enumerate(stages[1 : self._lazy], start=1):
            if index == self._opener:
                samples = _note_shards(itertools.islice(samples, first_shard, None), opened)
            samples = iter(invoke(stage, samples))
        samples = self._count_samples(samples, first_shard, opened)
        self.num_read_again = sum(1 for _ in itertools.islice(samples, num_skipped))
        for stage in stages[self._lazy :]:
            samples = iter(invoke(stage, samples))
        return samples

    def _count_samples(
        self, samples: Iterator[Any], shard: int, opened: list[str]
    ) -> Iterator[Any]:
        """Yield samples, and record the position after each sample."""
        first_shard, number = shard, 0
        for sample in samples:
            # The sample's shard. The next shard may already be open.
            while not self.reads_shards_again and sample["__url__"] != opened[shard - first_shard]:
                shard, number = shard + 1, 0
            number += 1
            self._place = (shard, number)
            yield sample

    def _seed_stage(self, index: int, stage: Any) -> Any:
        """Return the stage, seeded from the seed and the epoch if it shuffles."""
        name, seed = _name_stage(stage), seed_from(self._seed, self._epoch, index)
        if name in ("_shuffle", "_batched"):
            arguments = inspect.signature(stage.f).bind(None, *stage.args, **stage.kw)
            arguments.apply_defaults()
            _, *options = arguments.arguments.items()
            if name == "_batched":
                return functools.partial(_batched, **dict(options))
            return functools.partial(
                stage.f, **{**dict(options), "rng": random.Random(seed), "seed": None}
            )
        if name == "detshuffle" or (name == "SimpleShardList" and stage.seed is not None):
            stage = copy.copy(stage)
            stage.seed, stage.epoch = seed, -1
        return stage


def _check_stages(dataset: Any) -> None:
    for stage in dataset.pipeline:
        if (why := _INEXACT.get(_name_stage(stage))) is not None:
            raise DataError(
                f"the dataset, {describe(dataset)}, has a {_name_stage(stage)}, which {why}.\n"
                "A resumed run could not continue with the same records.\n"
                "Give WebDataset a list of shards; shardshuffle=1000 shuffles them."
            )
    if dataset.repetitions != 1:
        raise DataError(
            f"the dataset, {describe(dataset)}, repeats itself: with_epoch or repeat was called.\n"
            "An epoch would not be one pass over the shards.\n"
            "Remove the call. The loop starts the next epoch."
        )


def _name_stage(stage: Any) -> str:
    function = getattr(stage, "f", stage)
    return str(getattr(function, "__name__", type(function).__name__))


def _note_shards(
    shards: Iterable[Mapping[str, str]], opened: list[str]
) -> Iterator[Mapping[str, str]]:
    for shard in shards:
        opened.append(shard["url"])
        yield shard


def _batched(
    samples: Iterable[Any], *, batchsize: int, collation_fn: Any, partial: bool
) -> Iterator[Any]:
    """Yield the batches of WebDataset's stage, without reading the sample after a batch."""
    samples = iter(samples)
    while batch := list(itertools.islice(samples, batchsize)):
        if len(batch) == batchsize or partial:
            yield batch if collation_fn is None else collation_fn(batch)
