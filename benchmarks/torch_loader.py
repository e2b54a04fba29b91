"""What `detcore_torch.resumable` adds to each batch of a plain PyTorch loader.

All variants are in one process and take turns of a few batches in a random order, so that other
load on the machine falls on all alike. CPU time is that of the process; read the ratio beside that
of the null control.

    python benchmarks/torch_loader.py [--rounds 30] [--batches 400] [--quick]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from _report import parse_options, print_table, with_quartiles

from detcore_torch import resumable

RECORDS = 1 << 16
BATCH = 32


class Vectors(torch.utils.data.Dataset):  # type: ignore[misc]  # of a package without types
    """Records of 64 numbers, with noise: what a small model reads."""

    def __init__(self) -> None:
        self.data = torch.randn(1024, 64)

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        return self.data[index % 1024] + 0.1 * torch.randn(64), index


def plain_loader(num_workers: int = 0) -> Any:
    return torch.utils.data.DataLoader(
        Vectors(), BATCH, shuffle=True, num_workers=num_workers, persistent_workers=num_workers > 0
    )


def tensor_loader() -> Any:
    data = torch.utils.data.TensorDataset(torch.randn(RECORDS, 64))
    return torch.utils.data.DataLoader(data, BATCH, shuffle=True)


VARIANTS: dict[str, tuple[str, Callable[[], Any]]] = {
    "plain loader": ("plain loader", plain_loader),
    "null control: the same again": ("plain loader", plain_loader),
    "resumable": ("plain loader", lambda: resumable(plain_loader(), seed=1)),
    "plain loader, TensorDataset": ("plain loader, TensorDataset", tensor_loader),
    "resumable, TensorDataset": (
        "plain loader, TensorDataset",
        lambda: resumable(tensor_loader(), seed=1),
    ),
}


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def cpu_s(batches: Iterator[Any], count: int) -> float:
    """Return the CPU seconds of some batches."""
    began = time.process_time()
    for _ in range(count):
        next(batches)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--batches", type=int, default=400)
    options = parse_options(parser, rounds=2, batches=5)
    torch.set_num_threads(1)
    feeds = {name: endless(make()) for name, (_, make) in VARIANTS.items()}
    for feed in feeds.values():
        cpu_s(feed, 3)
    order = list(VARIANTS)
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(options.rounds):
        random.shuffle(order)
        for name in order:
            times[name].append(cpu_s(feeds[name], options.batches) / options.batches * 1e6)
    rows = []
    for name, (base, _) in VARIANTS.items():
        pairs = list(zip(times[name], times[base], strict=True))
        added = statistics.median(mine - theirs for mine, theirs in pairs)
        ratios = [mine / theirs for mine, theirs in pairs]
        median = statistics.median(times[name])
        rows.append([name, f"{median:.1f}", f"{added:.1f}", with_quartiles(ratios, 3)])
    print_table(["variant", "CPU us/batch", "added, us", "CPU ratio [q1, q3]"], rows)


if __name__ == "__main__":
    main()
