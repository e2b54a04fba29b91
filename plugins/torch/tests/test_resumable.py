"""Loaders of PyTorch's that continue from any position."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from _data import Drawing, Forgetful, Words
from _lab import Lab, LineTrial, line_data
from torch.utils.data import BatchSampler, RandomSampler, WeightedRandomSampler

from detcore.errors import DetcoreError
from detcore_torch import DataLoader, ResumableLoader, resumable

PyTorchLoader = torch.utils.data.DataLoader


def tripled(records: list[Any]) -> Any:
    return torch.stack(records) * 3 + random.random()


def make(num_workers: int = 0, **options: Any) -> ResumableLoader:
    options = {"batch_size": 3, "shuffle": True, "num_workers": num_workers, **options}
    return resumable(PyTorchLoader(Drawing(), **options), seed=5)


def take(loader: Any, count: int) -> list[Any]:
    """Take batches, across epochs."""
    found: list[Any] = []
    while len(found) < count:
        for batch in loader:
            found.append(batch.tolist())
            if len(found) == count:
                break
    return found


LOADERS = {
    "shuffled": {},
    "sequential": {"shuffle": False, "drop_last": True},
    "collated": {"collate_fn": tripled},
    "weighted": {"shuffle": False, "sampler": WeightedRandomSampler([1.0] * 10, 10)},
    "replaced": {"shuffle": False, "sampler": RandomSampler(range(10), replacement=True)},
    "batches": {
        "shuffle": False,
        "batch_size": 1,
        "batch_sampler": BatchSampler(RandomSampler(range(10)), 4, False),
    },
    "unbatched": {"batch_size": None},
    "divided": {
        "shuffle": False,
        "sampler": torch.utils.data.DistributedSampler(range(10), num_replicas=2, rank=1),
    },
}


@pytest.mark.parametrize("kind", LOADERS)
def test_a_loader_continues_anywhere_as_if_it_had_not_stopped(kind: str) -> None:
    options = LOADERS[kind]
    whole = take(make(**options), 9)
    for stop in (0, 1, 3, 4, 7):
        first = make(**options)
        assert take(first, stop) == whole[:stop]
        position = json.loads(json.dumps(first.position()))
        again = make(**options)
        again.seek(position)
        assert take(again, 9 - stop) == whole[stop:]
        first.seek(position)  # the same object as well
        assert take(first, 2) == whole[stop : stop + 2]


def test_worker_processes_make_the_same_batches() -> None:
    whole = take(make(), 9)
    stopped = make(num_workers=2, persistent_workers=True)
    assert take(stopped, 5) == whole[:5]
    assert stopped.records().tolist() == [int(record[0]) for record in whole[4]]
    again = make(num_workers=1)
    again.seek(stopped.position())
    assert take(again, 4) == whole[5:]
    assert take(stopped, 4) == whole[5:]  # a pass that ended early continues


def test_a_rank_draws_other_numbers_for_the_same_records() -> None:
    loader = PyTorchLoader(Drawing(), 3, shuffle=True)
    first, second = (take(resumable(loader, seed=5, rank=rank), 3) for rank in (0, 1))
    assert [[r[0] for r in batch] for batch in first] == [[r[0] for r in b] for b in second]
    assert not {r[1] for batch in first for r in batch} & {r[1] for b in second for r in b}


def test_the_seed_of_the_position_is_used_where_none_was_given() -> None:
    loader = PyTorchLoader(Drawing(), 3, shuffle=True)
    first = resumable(loader)
    whole = take(first, 2)
    torch.manual_seed(torch.initial_seed() + 1)
    again = resumable(loader)
    again.seek({**first.position(), "batch": 0})
    assert take(again, 2) == whole
    with pytest.raises(DetcoreError, match=r"saved with the seed \d+, and this loader.* seed 6"):
        resumable(loader, seed=6).seek(first.position())


def test_loading_leaves_the_generators_of_training_alone() -> None:
    def draw() -> list[float]:
        return [random.random(), np.random.randn(), np.random.rand(), torch.rand(1).item()]

    def reset() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    reset()
    expected = [draw() for _ in range(12)]
    for num_workers in (0, 1):
        reset()
        loader = make(num_workers)
        found = []
        for _ in range(3):
            for _batch in loader:
                found.append(draw())  # every second time half of a pair of normal numbers is left
        assert found == expected


class Seldom(Drawing):
    """Records of which only some are random."""

    def __getitem__(self, index: int) -> Any:
        drawn = {6: random.gauss, 7: np.random.normal, 8: random.uniform}
        return index, drawn[index](0.0, 1.0) if index in drawn else 0.0


def test_generators_are_seeded_also_if_the_first_batches_draw_nothing() -> None:
    def take_pairs(num_workers: int, start: int = 0) -> list[Any]:
        loader = PyTorchLoader(Seldom(), 3, shuffle=True, num_workers=num_workers)
        made = resumable(loader, seed=5)
        made.seek({**made.position(), "batch": start})
        random.seed(1)
        np.random.seed(1)
        state = random.getstate(), repr(np.random.get_state(legacy=False))
        pairs = [list(zip(*map(torch.Tensor.tolist, batch), strict=True)) for batch in made]
        assert (random.getstate(), repr(np.random.get_state(legacy=False))) == state
        return pairs

    whole = take_pairs(0)
    assert sum(noise != 0 for batch in whole for _, noise in batch) == 3
    assert take_pairs(2) == whole
    assert [take_pairs(0, start) for start in range(4)] == [whole[start:] for start in range(4)]


def test_an_epoch_may_be_chosen_and_is_not_begun_again_in_its_middle() -> None:
    epochs = [list(map(torch.Tensor.tolist, loader)) for loader in [make()] * 3]
    loader = make()
    loader.set_epoch(2)
    assert list(map(torch.Tensor.tolist, loader)) == epochs[2]
    loader.set_epoch(1)
    assert take(loader, 2) == epochs[1][:2]
    loader.set_epoch(1)
    assert take(loader, 2) == epochs[1][2:]
    assert (len(loader), loader.batch_size, loader.epoch) == (4, 3, 1)


def test_batch_one_million_is_reached_at_once() -> None:
    class Large(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 50_000_000

        def __getitem__(self, index: int) -> int:
            return index

    loader = resumable(PyTorchLoader(Large(), 32, shuffle=True), seed=1)
    position = {**loader.position(), "batch": 1_000_000}
    began = time.process_time()
    loader.seek(position)
    assert len(next(iter(loader))) == 32
    assert time.process_time() - began < 1


# -- iterable datasets ----------------------------------------------------------------------------


class Restarting(Words):
    """Begins again with each iteration, unless a state was loaded."""

    loaded = False

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.loaded = True

    def __iter__(self) -> Iterator[Any]:
        self.at = self.at if self.loaded else 0
        self.loaded = False
        yield from super().__iter__()


def make_stream(dataset: Any, num_workers: int = 0, **options: Any) -> ResumableLoader:
    loader = PyTorchLoader(dataset, 3, num_workers=num_workers, **options)
    replay = not hasattr(dataset, "state_dict")
    return resumable(loader, seed=5, record_id=lambda record: int(record[0]), replay=replay)


@pytest.mark.parametrize("kind", [Words, Restarting, Forgetful])
def test_a_loop_that_ended_early_continues_in_an_iterable_dataset(kind: Any) -> None:
    whole = take(make_stream(kind()), 9)
    stream = make_stream(kind())
    assert [batch for _ in range(9) for batch in take(stream, 1)] == whole


def test_an_iterable_dataset_continues_in_its_worker_processes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "detcore.torch")
    whole = take(make_stream(Words(), 2), 12)
    assert sorted(r[0] for batch in whole[:8] for r in batch) == list(map(float, range(20)))
    for stop, num_workers in ((3, 2), (7, 2), (2, 0)):
        first = make_stream(Words(), 2)
        take(first, stop)
        again = make_stream(Words(), num_workers)
        again.seek(json.loads(json.dumps(first.position())))
        assert take(again, 8 - stop) == whole[stop:8]
    assert "continues with the 2 loader processes that began it" in caplog.text


def test_what_is_read_again_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "detcore.torch")
    first = make_stream(Forgetful())
    take(first, 4)
    again = make_stream(Forgetful())
    again.seek(first.position())
    take(again, 1)
    assert "process 0 read 4 batches of " in caplog.text
    shorter = make_stream(Forgetful(8))
    shorter.seek(first.position())
    with pytest.raises(DetcoreError, match=r"ends after 3 batches of epoch 0, and 4 were taken"):
        take(shorter, 1)


# -- mistakes -------------------------------------------------------------------------------------


def broken(records: list[Any]) -> Any:
    raise ArithmeticError("no sum")


class Broken(Drawing):
    def __getitem__(self, index: int) -> Any:
        raise KeyError("no such file")


class Unsaveable(Words):
    def state_dict(self) -> dict[str, Any]:
        return {"file": object()}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_failure_names_the_function_and_the_records_and_loses_nothing(num_workers: int) -> None:
    options = {"batch_size": 3, "num_workers": num_workers}
    loader = resumable(PyTorchLoader(Drawing(), collate_fn=broken, **options), seed=5)
    said = r"(?s)^collate_fn, .*broken.*records 0, 1, 2: ArithmeticError: no sum.*resume"
    with pytest.raises(DetcoreError, match=said) as caught:
        next(iter(loader))
    assert "no sum" in str(caught.value.__cause__)
    assert loader.position()["batch"] == 0
    with pytest.raises(DetcoreError, match=r"(?s)the dataset, .*Broken.*0, 1, 2.*no such file"):
        next(iter(resumable(PyTorchLoader(Broken(), **options), seed=5)))


def test_a_state_that_needs_a_pickle_is_refused_and_named() -> None:
    loader = resumable(PyTorchLoader(Unsaveable(), 3), seed=5)
    next(iter(loader))
    with pytest.raises(DetcoreError, match=r"(?s)^Unsaveable.state_dict.*0.file is .*no pickles"):
        loader.position()


def test_loaders_that_cannot_be_resumed_are_refused_with_the_reason() -> None:
    class Own(torch.utils.data.DataLoader):
        def __iter__(self) -> Any:
            return iter(())

    data = Drawing()
    for given, said in (
        ([1], r"resumable takes a torch.utils.data.DataLoader"),
        (Own(data), "iterates in a way that detcore does not know"),
        (PyTorchLoader(data, num_workers=1, in_order=False), "in_order=False.*Leave in_order out"),
        (PyTorchLoader(Forgetful()), "without state_dict and load_state_dict.*replay=True"),
        (make(), "resumable already"),
    ):
        with pytest.raises(DetcoreError, match=f"(?s){said}"):
            resumable(given)
    with pytest.raises(DetcoreError, match="are for an IterableDataset"):
        resumable(PyTorchLoader(data), replay=True)
    with pytest.raises(DetcoreError, match="yields no batch in epoch 0"):
        take(make_stream(Words(0)), 1)


def test_positions_of_other_data_are_refused() -> None:
    loader = make()
    with pytest.raises(DetcoreError, match="records of the last batch are not known"):
        loader.records()
    take(loader, 1)
    position = loader.position()
    for changed, said in (
        ({}, "not a position of version 1"),
        ({**position, "batch": -1}, "not a position of version 1"),
        ({**position, "batch": 5}, "batch 5 of an epoch of 4 batches"),
        ({**position, "batches_per_epoch": 7}, "of 7 batches, and this loader has 4"),
        ({**position, "kind": "stream"}, "'stream' data, and this loader has 'indexed' data"),
    ):
        with pytest.raises(DetcoreError, match=said):
            loader.seek(changed)
    stream = make_stream(Words())
    with pytest.raises(DetcoreError, match="is damaged: KeyError: 'parts'"):
        stream.seek({**position, "kind": "stream", "tensors": {}})


# -- trials ---------------------------------------------------------------------------------------


class PlainTrial(LineTrial):
    """Returns loaders of PyTorch's."""

    kind: Any = PyTorchLoader

    def build_training_data_loader(self) -> Any:
        return self.kind(line_data(22), 4, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return self.kind(line_data(10), 30)


class DescribedTrial(PlainTrial):
    kind = DataLoader


def test_a_trial_takes_a_plain_loader_as_if_it_were_detcores() -> None:
    plain, described = (Lab(kind).train(3, 13) for kind in (PlainTrial, DescribedTrial))
    assert plain.state() == described.state()
    assert plain.controller.validate() == described.controller.validate()
    plain.close()
    described.close()
