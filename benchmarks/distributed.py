"""Measure latency and bandwidth of ``allgather`` between processes of one machine, with peers.

    python benchmarks/distributed.py [--sizes 2,4,8] [--rounds 5] [--large-calls 3] [--quick]
        [--only latency,bandwidth,read] [--peer-python PYTHON] [--baseline SRC]

Every turn starts N new processes and measures one implementation. The implementations take turns in
a new random order each round. The table gives medians and quartiles over rounds of the times of
rank 0, and ratios within rounds. The null control is detcore a second time.

"latency" is the median time of 500 calls with a small dict. "bandwidth" is the size of the array of
one rank (64 MiB of float32) divided by the median time of a call that gathers the arrays of all
ranks on all ranks. A rank receives N - 1 times as much. "and read" also sums every received array,
because memory that is only mapped costs its reader time later.

With --peer-python, the Python of an environment with both peers, the table has rows for them:

    python3.11 -m venv peers
    peers/bin/pip install determined==0.38.1 numpy
    peers/bin/pip install torch --index-url https://download.pytorch.org/whl/cpu

The peers are `determined.core.DistributedContext` and `torch.distributed.all_gather_object` with
gloo. With --baseline, the src directory of another checkout, that checkout has a row too.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _report import parse_options, print_table, with_quartiles

WARM_UP = 1

LABELS = {
    "detcore": "detcore",
    "null": "detcore, null control",
    "baseline": "detcore, baseline",
    "determined": "Determined 0.38.1",
    "gloo": "gloo, all_gather_object",
}
MEASURES = {
    "latency": "latency, us",
    "bandwidth": "bandwidth, MB/s",
    "read": "and read, MB/s",
}

AllGather = Callable[[Any], list[Any]]


# -- a rank ----------------------------------------------------------------------------------------


def open_detcore(place: dict[str, int], ports: list[int]) -> AllGather:
    """Join with detcore, and return its allgather."""
    from detcore.distributed import DistributedContext

    return DistributedContext(**place, key=str(ports)).allgather


def open_determined(place: dict[str, int], ports: list[int]) -> AllGather:
    """Join with Determined, and return its allgather."""
    from determined.core import DistributedContext

    return DistributedContext(**place, pub_port=ports[0], pull_port=ports[1]).allgather


def open_gloo(place: dict[str, int], ports: list[int]) -> AllGather:
    """Join with torch.distributed, and return an allgather of objects."""
    import torch.distributed as dist

    size = place["size"]
    address = f"tcp://127.0.0.1:{ports[0]}"
    dist.init_process_group("gloo", address, rank=place["rank"], world_size=size)

    def allgather(value: Any) -> list[Any]:
        values = [None] * size
        dist.all_gather_object(values, value)
        return values

    return allgather


def run_rank(
    name: str, rank: int, size: int, ports: list[int], options: argparse.Namespace
) -> None:
    """Join and measure. Rank 0 prints the results."""
    openers = {"determined": open_determined, "gloo": open_gloo}
    place = {
        "rank": rank, "size": size, "local_rank": rank, "local_size": size,
        "cross_rank": 0, "cross_size": 1,
    }  # fmt: skip
    allgather = openers.get(name, open_detcore)(place, ports)
    results = measure(allgather, rank, options)
    allgather("all are done")
    if rank == 0:
        print(json.dumps(results), flush=True)
    time.sleep(0.1)  # a rank that leaves now would disturb ranks that still read
    os._exit(0)  # the shutdown of the libraries is not measured


def measure(allgather: AllGather, rank: int, options: argparse.Namespace) -> dict[str, float]:
    """Return the median microseconds of a small call, and megabytes per second of large ones."""
    small = {"rank": rank, "loss": 0.25, "batches": 100}
    large = np.full(options.array_mib << 18, rank, np.float32)
    only = options.only.split(",")

    def read(value: Any) -> None:
        for array in allgather(value):
            array.sum()

    def bandwidth(call: Callable[[Any], Any]) -> float:
        return large.nbytes / median_s(call, large, options.large_calls, WARM_UP) / 1e6

    gc.collect()
    results = {}
    if "latency" in only:
        results["latency"] = median_s(allgather, small, options.calls, 20) * 1e6
    if "bandwidth" in only:
        results["bandwidth"] = bandwidth(allgather)
    if "read" in only:
        results["read"] = bandwidth(read)
    return results


def median_s(call: Callable[[Any], Any], value: Any, calls: int, warm_up: int) -> float:
    """Return the median seconds of a call, without the first calls."""
    times = []
    for _ in range(warm_up + calls):
        start = time.perf_counter()
        call(value)
        times.append(time.perf_counter() - start)
    return statistics.median(times[warm_up:])


# -- the driver ------------------------------------------------------------------------------------


def turn(
    name: str, python: str, size: int, source: str | None, options: argparse.Namespace
) -> dict[str, float]:
    """Start the ranks of one implementation, and return the measurements of rank 0."""
    environ = {k: v for k, v in os.environ.items() if k != "DETCORE_JOB_KEY"}
    environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if source is not None:
        environ["PYTHONPATH"] = source
    ports = json.dumps(free_ports(2))
    ranks = [
        subprocess.Popen(
            [python, __file__, "--rank", name, str(rank), str(size), ports,
             "--large-calls", str(options.large_calls), "--only", options.only,
             "--calls", str(options.calls), "--array-mib", str(options.array_mib)],
            stdout=subprocess.PIPE, env=environ, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    texts = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"{LABELS[name]} failed with {size} processes")
    results: dict[str, float] = json.loads(texts[0])
    return results


def free_ports(count: int) -> list[int]:
    """Return free ports."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def ratios(mine: list[dict[str, float]], theirs: list[dict[str, float]], measure: str) -> str:
    """Return the speed relative to the other implementation, within rounds. Above 1 is faster."""
    pairs = [(m[measure], t[measure]) for m, t in zip(mine, theirs, strict=True)]
    return with_quartiles([t / m if measure == "latency" else m / t for m, t in pairs], 2)


def rows(size: int, results: dict[str, list[dict[str, float]]]) -> Iterator[list[str]]:
    """Yield a row for each implementation and measure."""
    for measure_name, label in MEASURES.items():
        having = {name: turns for name, turns in results.items() if measure_name in turns[0]}
        if not having:
            continue
        reference = "determined" if "determined" in having else "detcore"
        for name, turns in having.items():
            value = with_quartiles([measured[measure_name] for measured in turns], 0)
            ratio = ratios(turns, results[reference], measure_name)
            yield [str(size), label, LABELS[name], value, ratio]


def main() -> None:
    """Run the comparison, or one rank of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="2,4,8", help="numbers of processes (2,4,8)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--large-calls", type=int, default=3, help="calls with large arrays in a turn (3)"
    )
    parser.add_argument("--only", default=",".join(MEASURES), help="measures (default: all)")
    parser.add_argument("--calls", type=int, default=500, help="calls for the latency (500)")
    parser.add_argument("--array-mib", type=int, default=64, help="MiB of the array of a rank (64)")
    parser.add_argument("--peer-python", help="Python with determined and torch")
    parser.add_argument("--baseline", help="src directory of another checkout of detcore")
    parser.add_argument("--rank", nargs=4, help=argparse.SUPPRESS)
    arguments = parse_options(parser, sizes="2", rounds=1, calls=10, large_calls=1, array_mib=1)
    if arguments.rank:
        name, rank, size, ports = arguments.rank
        run_rank(name, int(rank), int(size), json.loads(ports), arguments)
        return
    variants: dict[str, tuple[str, str | None]] = {}
    if arguments.peer_python:
        variants["determined"] = variants["gloo"] = (arguments.peer_python, None)
    if arguments.baseline:
        variants["baseline"] = (sys.executable, str(Path(arguments.baseline).resolve()))
    variants |= {"detcore": (sys.executable, None), "null": (sys.executable, None)}
    heads = ["processes", "measure", "variant", "median [q1, q3]", "times as fast [q1, q3]"]
    print_table(heads, compare(variants, arguments))


def compare(
    variants: dict[str, tuple[str, str | None]], arguments: argparse.Namespace
) -> Iterator[list[str]]:
    """Let the implementations take turns, and yield the rows of the table."""
    for size in [int(text) for text in arguments.sizes.split(",")]:
        results: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
        for _ in range(arguments.rounds):
            for name in random.sample(list(variants), len(variants)):
                python, source = variants[name]
                results[name].append(turn(name, python, size, source, arguments))
                print(size, name, results[name][-1], file=sys.stderr, flush=True)
        yield from rows(size, results)


if __name__ == "__main__":
    main()
