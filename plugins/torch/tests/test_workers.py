"""Several workers: processes that train one model over Gloo."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _lab import Lab, LineTrial, line_data
from test_training import ClippedTrial, CountRecords, Dropped
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from detcore.errors import InvalidExperimentError
from detcore_testing import RankError, run_ranks
from detcore_torch import DataLoader
from detcore_torch.process_group import WorkerGroup, settle_buckets


class ReducedTrial(ClippedTrial):
    """Clips gradients and has custom metrics, with 48 records in batches of 12 over all workers."""

    num_records = 48

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.counter = context.wrap_reducer(CountRecords())
        self.order = context.wrap_reducer(lambda sizes: float(sizes[-1]), "last_size")

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.counter.update(len(batch[0]))
        self.order.update(len(batch[0]))
        return {"loss": super().train_batch(batch, epoch_idx, batch_idx)}

    def evaluate_batch(self, batch: Any) -> Any:
        self.counter.update(len(batch[0]))
        self.order.update(len(batch[0]))
        return super().evaluate_batch(batch)


def train_reduced(distributed: Any) -> tuple[dict[str, Any], Any, Any]:
    lab = Lab(ReducedTrial, distributed=distributed, batch_size=12, aggregation_frequency=2)
    lab.train(6, 9)
    result = lab.controller.validate()
    reports = [(steps, metrics, n) for steps, metrics, _, n in lab.clock.reports]
    outcome = lab.state(), reports, (dict(result.metrics), result.n_records)
    lab.close()
    return outcome


def flat(state: Mapping[str, Any]) -> np.ndarray:
    return np.concatenate([np.ravel(value) for value in state.values()])


@pytest.mark.parametrize("size", [2, 3])
def test_workers_match_single_worker(size: int) -> None:
    (alone,) = run_ranks(train_reduced, 1)
    result = run_ranks(train_reduced, size)
    state, reports, validation = alone
    assert [report[1]["counted"] for report in reports] == [72, 36]
    for other, told, validated in result:
        assert other == result[0][0]  # all workers have equal bits
        np.testing.assert_allclose(flat(other), flat(state), rtol=1e-12, atol=1e-14)
        assert validated == result[0][2]
        assert validated[1] == validation[1] == 10
        assert validated[0]["counted"] == 10
        assert validated[0]["last_size"] == 1  # the batch that comes last in the data
        assert validated[0]["val_loss"] == pytest.approx(validation[0]["val_loss"], rel=1e-12)
        assert [report[1]["counted"] for report in told] == [72, 36]
        assert [report[2] for report in told] == [72 // size, 36 // size]
    losses = [np.mean([told[0][1]["loss"] for _, told, _ in result])]
    assert losses == pytest.approx([reports[0][1]["loss"]], rel=1e-12)


def train_dropped(
    directory: Path | None, cut: int, distributed: Any
) -> tuple[dict[str, Any], float, str]:
    """Train to batch 11 with one or two controllers; return the complete final state."""
    batch_size = 2 * distributed.size
    make = functools.partial(
        Lab, Dropped, distributed=distributed, batch_size=batch_size, aggregation_frequency=3
    )
    lab = make()
    if directory is not None:
        lab.train(cut)
        lab.save(directory)
        lab.close()
        lab = make(steps_completed=cut)
        torch.rand(7)
        lab.restore(directory)
    lab.train(11)
    result = lab.state(), lab.controller.validate().metrics["val_loss"], str(torch.rand(2))
    lab.close()
    return result


@pytest.mark.parametrize(("size", "cut"), [(2, 4), (2, 6), (3, 4)])
def test_resumed_workers_are_bit_exact(tmp_path: Path, size: int, cut: int) -> None:
    """PyTorch would sum the terms of three workers in another order in a process's first step."""
    expected = run_ranks(functools.partial(train_dropped, None, cut), size)
    again = run_ranks(functools.partial(train_dropped, tmp_path, cut), size)
    assert again == expected
    assert len({random for _, _, random in expected}) == size  # each worker is seeded


class Mixed(torch.nn.Module):  # type: ignore[misc]  # no types here
    """Has parameters of many kinds: sparse, complex, frozen, infinite, empty, scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = torch.nn.Embedding(3, 2, sparse=True)
        self.norm = torch.nn.BatchNorm1d(2)
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.short = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
        self.pairs = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.infinite = torch.nn.Parameter(torch.tensor([torch.inf, torch.nan]))
        self.empty = torch.nn.Parameter(torch.ones(0))
        self.factor = torch.nn.Parameter(torch.tensor(2.0))


def noted(exchanges: list[int], bucket: Any) -> Any:
    exchanges.append(len(bucket.parameters()))
    return default_hooks.allreduce_hook(None, bucket)


def settle_mixed(distributed: Any) -> list[Any]:
    group = WorkerGroup(distributed)
    group.open()
    result = []
    for more in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        model = Mixed()
        wrapped = torch.nn.parallel.DistributedDataParallel(model, **more)
        wrapped.device_ids = [0]  # as on a GPU, where it moves its arguments
        model.short.grad = torch.full((2,), 5.0, dtype=torch.float16)
        before = str(model.state_dict()), torch.get_rng_state().tolist()
        exchanges: list[int] = []
        wrapped.register_comm_hook(exchanges, lambda state, bucket: noted(state, bucket))
        with torch.no_grad(), torch.autograd.set_detect_anomaly(True):
            settle_buckets(torch.nn.Sequential(wrapped))
        assert (str(model.state_dict()), torch.get_rng_state().tolist()) == before
        assert wrapped.module is model
        assert [name for name, p in model.named_parameters() if p.grad is not None] == ["short"]
        assert model.short.grad.tolist() == [5.0, 5.0]
        result.append(sum(exchanges))
    group.close()
    return result


def test_settle_buckets_changes_only_order() -> None:
    """It exchanges each of 8 parameters twice, or nothing if PyTorch's order is fixed."""
    for result in run_ranks(settle_mixed, 2):
        assert result == [16, 16, 0]


class AddingTrial(LineTrial):
    """Equal metrics for any number of workers."""

    num_records = 48


def train_part(directory: Path, start: int, end: int, distributed: Any) -> dict[str, Any]:
    lab = Lab(AddingTrial, distributed=distributed, batch_size=12, steps_completed=start,
              aggregation_frequency=4)  # fmt: skip
    if start:
        lab.restore(directory)
    lab.train(end)
    if not start:
        lab.save(directory)
    state = lab.state()
    lab.close()
    return state


def test_other_world_size_resumes_mid_accumulation(tmp_path: Path) -> None:
    run_ranks(functools.partial(train_part, tmp_path, 0, 6), 3)
    parts = run_ranks(functools.partial(train_part, tmp_path, 6, 13), 2)
    (expected,) = run_ranks(functools.partial(train_part, tmp_path / "b", 0, 13), 1)
    assert parts[0] == parts[1]
    np.testing.assert_allclose(flat(parts[0]), flat(expected), rtol=1e-12, atol=1e-14)


class CountingTrial(LineTrial):
    """Its buffer differs on each worker, and evaluation returns the buffer that was used."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.inner = context.models[0]

    def build_model(self) -> Any:
        model = torch.nn.Linear(3, 1)
        model.register_buffer("rank", torch.zeros(()))
        return model

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        before = float(self.inner.rank)
        self.inner.rank.fill_(1.0 + self.context.distributed.rank)
        return {"before": before, **super().train_batch(batch, epoch_idx, batch_idx)}

    def evaluate_batch(self, batch: Any) -> Any:
        torch.rand(1)
        return {"rank": self.inner.rank}


def train_counting(distributed: Any) -> list[Any]:
    lab = Lab(CountingTrial, distributed=distributed, batch_size=12, aggregation_frequency=2)
    lab.train(3)
    gradient = lab.trial.inner.weight.grad.tolist()
    generators = torch.get_rng_state().tolist()
    rank = lab.controller.validate().metrics["rank"]
    is_preserved = torch.get_rng_state().tolist() == generators
    result = [[batch["before"] for batch in lab.clock.reports[0][2]], rank, is_preserved, gradient]
    lab.close()
    return result


def test_buffers_and_gradients_are_exchanged_once() -> None:
    first, second = run_ranks(train_counting, 2)
    assert first[:3] == second[:3] == [[0.0, 1.0, 1.0], 1.0, True]
    assert first[3] != second[3]  # of the third batch, which is not yet applied


def leave(distributed: Any) -> None:
    class Leaving(LineTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 3 and distributed.rank == 1:
                raise ArithmeticError("rank 1 has enough")
            return super().train_batch(batch, epoch_idx, batch_idx)

    lab = Lab(Leaving, distributed=distributed)
    try:
        lab.train(6)
    finally:
        lab.close()


def test_failed_worker_ends_other_workers() -> None:
    with pytest.raises(RankError, match="rank 1 has enough") as caught:
        run_ranks(leave, 2)
    assert caught.value.rank == 1


class DividedTrial(LineTrial):
    """Returns different data on each worker."""

    def build_training_data_loader(self) -> Any:
        return DataLoader(line_data(24 + 4 * self.context.distributed.rank), 4)


def divide(distributed: Any) -> None:
    Lab(DividedTrial, distributed=distributed)


def test_workers_with_different_data_are_rejected() -> None:
    with pytest.raises(RankError, match=r"(?s)rank 0: 6 and 4; rank 1: 7 and 4.*all of the data"):
        run_ranks(divide, 2)


def test_workers_on_several_machines_are_rejected() -> None:
    class Far:
        rank, size, cross_size = 0, 4, 2

        def get_size(self) -> int:
            return self.size

    with pytest.raises(InvalidExperimentError, match="workers on 2 machines"):
        Lab(distributed=Far())
