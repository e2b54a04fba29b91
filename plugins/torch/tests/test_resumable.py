"""PyTorch loaders that resume from any position."""

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
    batches: list[Any] = []
    while len(batches) < count:
        for batch in loader:
            batches.append(batch.tolist())
            if len(batches) == count:
                break
    return batches


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
def test_loader_resumes_at_any_batch(kind: str) -> None:
    options = LOADERS[kind]
    expected = take(make(**options), 9)
    for stop in (0, 1, 3, 4, 7):
        first = make(**options)
        assert take(first, stop) == expected[:stop]
        position = json.loads(json.dumps(first.position()))
        again = make(**options)
        again.seek(position)
        assert take(again, 9 - stop) == expected[stop:]
        first.seek(position)  # the same object as well
        assert take(first, 2) == expected[stop : stop + 2]


def test_worker_processes_yield_same_batches() -> None:
    expected = take(make(), 9)
    stopped = make(num_workers=2, persistent_workers=True)
    assert take(stopped, 5) == expected[:5]
    assert stopped.records().tolist() == [int(record[0]) for record in expected[4]]
    again = make(num_workers=1)
    again.seek(stopped.position())
    assert take(again, 4) == expected[5:]
    assert take(stopped, 4) == expected[5:]  # a pass that ended early continues


def test_ranks_draw_different_numbers() -> None:
    loader = PyTorchLoader(Drawing(), 3, shuffle=True)
    first, second = (take(resumable(loader, seed=5, rank=rank), 3) for rank in (0, 1))
    assert [[r[0] for r in batch] for batch in first] == [[r[0] for r in b] for b in second]
    assert not {r[1] for batch in first for r in batch} & {r[1] for b in second for r in b}


def test_seek_restores_seed_of_position() -> None:
    loader = PyTorchLoader(Drawing(), 3, shuffle=True)
    first = resumable(loader)
    expected = take(first, 2)
    torch.manual_seed(torch.initial_seed() + 1)
    again = resumable(loader)
    again.seek({**first.position(), "batch": 0})
    assert take(again, 2) == expected
    with pytest.raises(DetcoreError, match=r"saved with the seed \d+, and this loader.* seed 6"):
        resumable(loader, seed=6).seek(first.position())


def test_loading_preserves_training_generators() -> None:
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
        result = []
        for _ in range(3):
            for _batch in loader:
                result.append(draw())  # every second draw leaves half of a pair of normal numbers
        assert result == expected


class Seldom(Drawing):
    """Records, some of which are random."""

    def __getitem__(self, index: int) -> Any:
        draws = {6: random.gauss, 7: np.random.normal, 8: random.uniform}
        return index, draws[index](0.0, 1.0) if index in draws else 0.0


def test_generators_are_seeded_after_idle_batches() -> None:
    def take_pairs(num_workers: int, start: int = 0) -> list[Any]:
        loader = PyTorchLoader(Seldom(), 3, shuffle=True, num_workers=num_workers)
        instance = resumable(loader, seed=5)
        instance.seek({**instance.position(), "batch": start})
        random.seed(1)
        np.random.seed(1)
        state = random.getstate(), repr(np.random.get_state(legacy=False))
        pairs = [list(zip(*map(torch.Tensor.tolist, batch), strict=True)) for batch in instance]
        assert (random.getstate(), repr(np.random.get_state(legacy=False))) == state
        return pairs

    expected = take_pairs(0)
    assert sum(noise != 0 for batch in expected for _, noise in batch) == 3
    assert take_pairs(2) == expected
    assert [take_pairs(0, start) for start in range(4)] == [expected[start:] for start in range(4)]


def test_set_epoch_does_not_restart_current_epoch() -> None:
    epochs = [list(map(torch.Tensor.tolist, loader)) for loader in [make()] * 3]
    loader = make()
    loader.set_epoch(2)
    assert list(map(torch.Tensor.tolist, loader)) == epochs[2]
    loader.set_epoch(1)
    assert take(loader, 2) == epochs[1][:2]
    loader.set_epoch(1)
    assert take(loader, 2) == epochs[1][2:]
    assert (len(loader), loader.batch_size, loader.epoch) == (4, 3, 1)


def test_seek_to_batch_one_million_is_immediate() -> None:
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
    """Starts over with each iteration, unless a state was loaded."""

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
def test_iterable_dataset_resumes_after_break(kind: Any) -> None:
    expected = take(make_stream(kind()), 9)
    stream = make_stream(kind())
    assert [batch for _ in range(9) for batch in take(stream, 1)] == expected


def test_iterable_dataset_resumes_in_workers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "detcore.torch")
    expected = take(make_stream(Words(), 2), 12)
    assert sorted(r[0] for batch in expected[:8] for r in batch) == list(map(float, range(20)))
    for stop, num_workers in ((3, 2), (7, 2), (2, 0)):
        first = make_stream(Words(), 2)
        take(first, stop)
        again = make_stream(Words(), num_workers)
        again.seek(json.loads(json.dumps(first.position())))
        assert take(again, 8 - stop) == expected[stop:8]
    assert "continues with the 2 loader processes that started it" in caplog.text


def test_replay_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "detcore.torch")
    first = make_stream(Forgetful())
    take(first, 4)
    again = make_stream(Forgetful())
    again.seek(first.position())
    take(again, 1)
    assert "process 0 read 4 batches of " in caplog.text
    shorter = make_stream(Forgetful(8))
    shorter.seek(first.position())
    with pytest.raises(
        DetcoreError, match=r"ends after 3 batches of epoch 0, and yielded 4 before"
    ):
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
def test_data_error_names_function_and_records(num_workers: int) -> None:
    options = {"batch_size": 3, "num_workers": num_workers}
    loader = resumable(PyTorchLoader(Drawing(), collate_fn=broken, **options), seed=5)
    message = r"(?s)^collate_fn, .*broken.*records 0, 1, 2: ArithmeticError: no sum.*resume"
    with pytest.raises(DetcoreError, match=message) as caught:
        next(iter(loader))
    assert "no sum" in str(caught.value.__cause__)
    assert loader.position()["batch"] == 0
    with pytest.raises(DetcoreError, match=r"(?s)the dataset, .*Broken.*0, 1, 2.*no such file"):
        next(iter(resumable(PyTorchLoader(Broken(), **options), seed=5)))


def test_state_that_needs_pickle_is_rejected() -> None:
    loader = resumable(PyTorchLoader(Unsaveable(), 3), seed=5)
    next(iter(loader))
    with pytest.raises(DetcoreError, match=r"(?s)^Unsaveable.state_dict.*0.file is .*no pickles"):
        loader.position()


def test_loaders_that_cannot_resume_are_rejected() -> None:
    class Own(torch.utils.data.DataLoader):
        def __iter__(self) -> Any:
            return iter(())

    data = Drawing()
    for invalid, message in (
        ([1], r"resumable accepts a torch.utils.data.DataLoader"),
        (Own(data), "iterates in a way that detcore does not know"),
        (PyTorchLoader(data, num_workers=1, in_order=False), "in_order=False.*Remove in_order"),
        (PyTorchLoader(Forgetful()), "without state_dict and load_state_dict.*replay=True"),
        (make(), "already resumable"),
    ):
        with pytest.raises(DetcoreError, match=f"(?s){message}"):
            resumable(invalid)
    with pytest.raises(DetcoreError, match="are for an IterableDataset"):
        resumable(PyTorchLoader(data), replay=True)
    with pytest.raises(DetcoreError, match="yields no batch in epoch 0"):
        take(make_stream(Words(0)), 1)


def test_positions_of_other_data_are_rejected() -> None:
    loader = make()
    with pytest.raises(DetcoreError, match="records of the last batch are not known"):
        loader.records()
    take(loader, 1)
    position = loader.position()
    for changes, message in (
        ({}, "not a position of version 1"),
        ({**position, "batch": -1}, "not a position of version 1"),
        ({**position, "batch": 5}, "batch 5 of an epoch of 4 batches"),
        ({**position, "batches_per_epoch": 7}, "of 7 batches, and this loader has 4"),
        ({**position, "kind": "stream"}, "'stream' data, and this loader has 'indexed' data"),
    ):
        with pytest.raises(DetcoreError, match=message):
            loader.seek(changes)
    stream = make_stream(Words())
    with pytest.raises(DetcoreError, match="is damaged: KeyError: 'parts'"):
        stream.seek({**position, "kind": "stream", "tensors": {}})


# -- trials ---------------------------------------------------------------------------------------


class PlainTrial(LineTrial):
    """Returns PyTorch loaders."""

    kind: Any = PyTorchLoader

    def build_training_data_loader(self) -> Any:
        return self.kind(line_data(22), 4, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return self.kind(line_data(10), 30)


class DescribedTrial(PlainTrial):
    kind = DataLoader


def test_trial_accepts_plain_pytorch_loader() -> None:
    plain, described = (Lab(kind).train(3, 13) for kind in (PlainTrial, DescribedTrial))
    assert plain.state() == described.state()
    assert plain.controller.validate() == described.controller.validate()
    plain.close()
    described.close()
