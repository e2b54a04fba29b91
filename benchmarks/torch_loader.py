"""Measure the time that `detcore_torch.resumable` adds to each batch of a loader.

All variants are in one process and take turns of a few batches in a random order, so that other
load on the machine affects all of them alike. The CPU time is that of the process and of the loader
processes of the variant. Compare it with the null control.

    python benchmarks/torch_loader.py [--rounds 30] [--batches 400] [--quick]
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import datasets
import torch
from _report import parse_options, print_table, with_quartiles

from detcore_torch import resumable

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torchdata calls functions that PyTorch has deprecated
    from torchdata.stateful_dataloader import StatefulDataLoader

RECORDS = 1 << 16
BATCH = 32


class Vectors(torch.utils.data.Dataset):  # type: ignore[misc]  # the package has no types
    """Records of 64 numbers with noise, as for a small model."""

    def __init__(self) -> None:
        self.data = torch.randn(1024, 64)

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        return self.data[index % 1024] + 0.1 * torch.randn(64), index


def plain_loader() -> Any:
    return torch.utils.data.DataLoader(Vectors(), BATCH, shuffle=True)


def working_loader() -> Any:
    """Return a loader with processes, whose batches are single numbers.

    Tensors in shared memory would cost a hundred times the measured time.
    """
    return torch.utils.data.DataLoader(
        range(RECORDS),  # type: ignore[arg-type]  # has the methods of a dataset
        BATCH,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        collate_fn=len,
    )


def tensor_loader() -> Any:
    data = torch.utils.data.TensorDataset(torch.randn(RECORDS, 64))
    return torch.utils.data.DataLoader(data, BATCH, shuffle=True)


def stateful_loader() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # once per process
        return StatefulDataLoader(Vectors(), BATCH, shuffle=True)


def table_loader() -> Any:
    data = datasets.Dataset.from_dict({"x": torch.randn(4096, 64).numpy(), "y": range(4096)})
    return torch.utils.data.DataLoader(data.with_format("torch"), BATCH, shuffle=True)


LOADERS: dict[str, Callable[[], Any]] = {
    "DataLoader": plain_loader,
    "DataLoader, 2 workers, numbers": working_loader,
    "DataLoader, TensorDataset": tensor_loader,
    "StatefulDataLoader": stateful_loader,
    "DataLoader, Hugging Face datasets": table_loader,
}


class Feed:
    """The batches of all epochs of a loader, and its processes."""

    def __init__(self, loader: Any) -> None:
        earlier = set(multiprocessing.active_children())
        self.loader = loader
        self.batches = self._endless()
        next(self.batches)
        workers = set(multiprocessing.active_children()) - earlier
        self._clocks = [time.CLOCK_PROCESS_CPUTIME_ID]
        # The clock of another process (Linux); see clock_getcpuclockid(3).
        self._clocks += [(~worker.pid << 3) | 2 for worker in workers if worker.pid is not None]

    def cpu_s(self, count: int) -> float:
        """Return the CPU seconds of some batches."""
        began = self._now_s()
        for _ in range(count):
            next(self.batches)
        return self._now_s() - began

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def _now_s(self) -> float:
        return sum(map(time.clock_gettime, self._clocks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--batches", type=int, default=400)
    options = parse_options(parser, rounds=2, batches=5)
    torch.set_num_threads(1)
    feeds: dict[tuple[str, str], Feed] = {}
    for name, make in LOADERS.items():
        feeds[name, "plain"] = Feed(make())
        feeds[name, "null control: the same again"] = Feed(make())
        feeds[name, "resumable"] = Feed(resumable(make(), seed=1))
    for feed in feeds.values():
        feed.cpu_s(3)
    order = list(feeds)
    times: dict[tuple[str, str], list[float]] = {key: [] for key in feeds}
    for _ in range(options.rounds):
        random.shuffle(order)
        for key in order:
            times[key].append(feeds[key].cpu_s(options.batches) / options.batches * 1e6)
    rows = []
    for (name, variant), batch_times in times.items():
        pairs = list(zip(batch_times, times[name, "plain"], strict=True))
        added = [time - base for time, base in pairs]
        ratio = statistics.median(time / base for time, base in pairs)
        median = statistics.median(batch_times)
        rows.append([name, variant, f"{median:.1f}", with_quartiles(added, 1), f"{ratio:.3f}"])
    print_table(["loader", "variant", "CPU us/batch", "added, us [q1, q3]", "CPU ratio"], rows)


if __name__ == "__main__":
    main()
