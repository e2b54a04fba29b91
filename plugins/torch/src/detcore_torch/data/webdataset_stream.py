"""A WebDataset that knows its shard and sample, and shuffles by a seed and the epoch."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from detcore.errors import DataError, describe
from detcore_torch.libraries import supported, torch
from detcore_torch.state.random_generators import seed_from

_OPENERS = frozenset({"StreamingOpen", "FileCache", "tarfile_samples"})
_REORDERING = frozenset({"_shuffle", "detshuffle", "islice"})
# Stages whose result follows from the shards and the seed, so they may run alone.
_OTHER_READING = (
    "SimpleShardList list single_node_only split_by_node split_by_worker tar_file_expander "
    "group_by_keys check_empty"
)
_READING = _OPENERS | _REORDERING | frozenset(_OTHER_READING.split())
# Functions of stages that take no sample before they need it.
_LAZY_FUNCTIONS = (
    "_associate _batched _decode _extract_keys _info _log_keys _map _map_dict _map_tuple _rename "
    "_rename_keys _select _to_tuple _xdecode"
)
_LAZY = frozenset(_LAZY_FUNCTIONS.split())
_INEXACT = {
    "ResampledShards": "draws shards with replacement, so some records would be used twice in an "
    "epoch and others never",
    "MultiShardSample": "draws shards from a generator that is not seeded",
    "DirectoryShardList": "takes the shards that are in the folder at the time",
    "RandomMix": "draws from a generator that is not seeded",
}


def is_webdataset(dataset: Any) -> bool:
    """Return whether a dataset is a pipeline of WebDataset's."""
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(dataset).__mro__}
    return "webdataset.pipeline.DataPipeline" in kinds


class ShardStream(torch.utils.data.IterableDataset):  # type: ignore[misc]  # no types here
    """The samples of a WebDataset, from any of them.

    The state is a number of shards and of samples after these. The shards are skipped without
    opening them, and the samples are read again without decoding them. Samples that are shuffled
    have no place in a shard, so all samples of the epoch up to the place are read again.

    Args:
        dataset: The WebDataset. It stays as it is.

    Attributes:
        has_place: Whether the place is known; else the batches of the epoch are made again.
        reads_shards_again: Whether all shards up to the place are read again.
        num_read_again: Samples that the last iteration read again to get to its place.

    Raises:
        DataError: If the dataset's records cannot be the same in another run.
        PluginError: If the version of webdataset is not supported.
    """

    def __init__(self, dataset: Any) -> None:
        supported("webdataset", (0, 2), (2,), "webdataset")
        _check(dataset)
        self._dataset = dataset
        self._stages = list(dataset.pipeline)
        names = [_name(stage) for stage in self._stages]
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
        """Return the place of the next sample."""
        return dict(zip(("shards", "samples"), self._place, strict=True))

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Start the next iteration from a place."""
        self._place = (state["shards"], state["samples"])

    def begin_epoch(self, seed: int, epoch: int) -> None:
        """Start the next iteration from the beginning of an epoch."""
        self._seed, self._epoch = seed, epoch
        self._place = (0, 0)

    def __iter__(self) -> Iterator[Any]:
        """Return the samples of the epoch from the place on."""
        first_shard, num_skipped = self._place
        stages = [self._seeded(index, stage) for index, stage in enumerate(self._stages)]
        invoke: Callable[..., Any] = self._dataset.invoke
        opened: list[str] = []
        samples: Iterator[Any] = iter(invoke(stages[0]))
        for index, stage in enumerate(stages[1 : self._lazy], start=1):
            if index == self._opener:
                samples = _noted(itertools.islice(samples, first_shard, None), opened)
            samples = iter(invoke(stage, samples))
        samples = self._counted(samples, first_shard, opened)
        self.num_read_again = sum(1 for _ in itertools.islice(samples, num_skipped))
        for stage in stages[self._lazy :]:
            samples = iter(invoke(stage, samples))
        return samples

    def _counted(self, samples: Iterator[Any], shard: int, opened: list[str]) -> Iterator[Any]:
        """Yield samples, and note the place after each."""
        first_shard, number = shard, 0
        for sample in samples:
            # Read from a shard, whose successor may be open already.
            while not self.reads_shards_again and sample["__url__"] != opened[shard - first_shard]:
                shard, number = shard + 1, 0
            number += 1
            self._place = (shard, number)
            yield sample

    def _seeded(self, index: int, stage: Any) -> Any:
        """Return a stage that draws from the seed and the epoch, if it shuffles."""
        name, seed = _name(stage), seed_from(self._seed, self._epoch, index)
        if name in ("_shuffle", "_batched"):
            given = inspect.signature(stage.f).bind(None, *stage.args, **stage.kw)
            given.apply_defaults()
            _, *options = given.arguments.items()
            if name == "_batched":
                return functools.partial(_batched, **dict(options))
            return functools.partial(
                stage.f, **{**dict(options), "rng": random.Random(seed), "seed": None}
            )
        if name == "detshuffle" or (name == "SimpleShardList" and stage.seed is not None):
            stage = copy.copy(stage)
            stage.seed, stage.epoch = seed, -1
        return stage


def _check(dataset: Any) -> None:
    for stage in dataset.pipeline:
        if (why := _INEXACT.get(_name(stage))) is not None:
            raise DataError(
                f"the dataset, {describe(dataset)}, has a {_name(stage)}, which {why}.\n"
                "A resumed run could not continue with the same records.\n"
                "Give WebDataset a list of shards; shardshuffle=1000 shuffles them."
            )
    if dataset.repetitions != 1:
        raise DataError(
            f"the dataset, {describe(dataset)}, repeats itself: with_epoch or repeat was called.\n"
            "An epoch of it would not be one pass over the shards.\n"
            "Leave the call out; the loop starts the next epoch."
        )


def _name(stage: Any) -> str:
    function = getattr(stage, "f", stage)
    return str(getattr(function, "__name__", type(function).__name__))


def _noted(shards: Iterable[Mapping[str, str]], opened: list[str]) -> Iterator[Mapping[str, str]]:
    for shard in shards:
        opened.append(shard["url"])
        yield shard


def _batched(
    samples: Iterable[Any], *, batchsize: int, collation_fn: Any, partial: bool
) -> Iterator[Any]:
    """Yield the batches of WebDataset's stage, without taking the first sample after them."""
    samples = iter(samples)
    while batch := list(itertools.islice(samples, batchsize)):
        if len(batch) == batchsize or partial:
            yield batch if collation_fn is None else collation_fn(batch)
