"""Measure how fast the loader delivers the items of a Sequence, against only computing them.

Each variant is a separate process. One driver gives each of them a turn, in a random order each
round, so that other load on the machine affects all of them alike. Compare the wall ratio with the
null control, and use the CPU ratio if the null control is wide.

    python benchmarks/sequence_loader.py [--rounds 9] [--items 300] [--keras] [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from _report import fixed_variables, parse_options, print_table, with_quartiles

TICKS = os.sysconf("SC_CLK_TCK")
WORKERS = 2
SAME_FOR_ALL = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # Whether malloc returns freed arrays to the kernel after each item depends on the other
    # allocations of the process. The effect would be half of the measured time.
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
}


class Images:
    """Batches of 128 images as float32, 1.57 MB, randomly cropped, flipped and tinted."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self.images = generator.integers(0, 256, (2000, 36, 36, 3), dtype=np.uint8)
        self.labels = generator.integers(0, 10, 2000)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        records = (np.arange(128) + index * 128) % len(self.images)
        batch = np.empty((128, 32, 32, 3), np.float32)
        tops, lefts = np.random.randint(0, 5, (2, 128))
        flips = np.random.rand(128) < 0.5
        gains = np.random.uniform(0.7, 1.4, 128).astype(np.float32)
        for place, (record, top, column) in enumerate(zip(records, tops, lefts, strict=True)):
            image = self.images[record, top : top + 32, column : column + 32]
            pixels = (image[:, ::-1] if flips[place] else image).astype(np.float32)
            pixels = np.clip((pixels - 128) * gains[place] + 128, 0, 255)
            pixels = np.sqrt(pixels / 255)
            batch[place] = (pixels - pixels.mean()) / (pixels.std() + 1e-6)
        return batch, self.labels[records]


# -- variants: each returns a function that runs a turn of some items ----------------------------


def inline() -> Callable[[int], None]:
    """One process computes and delivers nothing: the CPU time of `__getitem__`."""
    sequence = Images()

    def turn(items: int) -> None:
        for index in range(items):
            sequence[index]

    return turn


def two_processes() -> Callable[[int], None]:
    """Two processes compute half of the items each and deliver nothing: the upper limit."""
    sequence = Images()

    def turn(items: int) -> None:
        pids = []
        for worker in range(WORKERS):
            pid = os.fork()
            if not pid:
                for index in range(worker, items, WORKERS):
                    sequence[index]
                os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)

    return turn


def two_threads() -> Callable[[int], None]:
    """Two threads compute half of the items each and deliver nothing: the limit of the GIL."""
    sequence = Images()

    def work(worker: int, items: int) -> None:
        for index in range(worker, items, WORKERS):
            sequence[index]

    def turn(items: int) -> None:
        threads = [threading.Thread(target=work, args=(w, items)) for w in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return turn


def loader(workers: int, *, processes: bool) -> Callable[[], Callable[[int], None]]:
    """The loader of detcore, with a consumer that does nothing."""

    def make() -> Callable[[int], None]:
        from sequence_loader import Images as Importable  # not from __main__

        from detcore_keras.data.sequence_loader import SequenceLoader

        sequence_loader = SequenceLoader(
            Importable(),
            workers=workers,
            use_multiprocessing=processes,
            max_queue_size=10,
            seed=0,
        )

        def turn(items: int) -> None:
            for _ in sequence_loader.read_items(range(items)):
                pass

        turn(20)
        return turn

    return make


def keras_enqueuer(*, processes: bool) -> Callable[[], Callable[[int], None]]:
    """The OrderedEnqueuer of Keras 2 with two workers. Requires TensorFlow 2.15."""

    def make() -> Callable[[int], None]:
        import tensorflow as tf

        class Sequence(Images, tf.keras.utils.Sequence):  # type: ignore[misc]
            pass

        sequence = Sequence()

        def turn(items: int) -> None:
            enqueuer = tf.keras.utils.OrderedEnqueuer(sequence, use_multiprocessing=processes)
            enqueuer.start(workers=WORKERS, max_queue_size=10)
            source = enqueuer.get()
            for _ in range(items):
                next(source)
            enqueuer.stop()

        return turn

    return make


VARIANTS: dict[str, Callable[[], Callable[[int], None]]] = {
    "limit: 2 processes, nothing delivered": two_processes,
    "null control: the same again": two_processes,
    "__getitem__ inline": inline,
    "2 threads, nothing delivered": two_threads,
    "loader, calling thread": loader(0, processes=False),
    "loader, 2 threads": loader(2, processes=False),
    "loader, 1 process": loader(1, processes=True),
    "loader, 2 processes": loader(2, processes=True),
}
OPTIONAL = {
    "Keras 2 enqueuer, 2 threads": keras_enqueuer(processes=False),
    "Keras 2 enqueuer, 2 processes": keras_enqueuer(processes=True),
}


# -- a variant's process ---------------------------------------------------------------------------


def run_variant(name: str) -> None:
    """Run a turn for each line on standard input that gives a number of items."""
    sys.path.insert(0, str(Path(__file__).parent))
    turn = {**VARIANTS, **OPTIONAL}[name]()
    print("ready", flush=True)
    for line in sys.stdin:
        items = int(line)
        cpu, wall = tree_cpu_s(), time.perf_counter()
        turn(items)
        wall = time.perf_counter() - wall
        print(json.dumps({"wall": wall, "cpu": tree_cpu_s() - cpu}), flush=True)


def tree_cpu_s() -> float:
    """Return the CPU seconds of this process and its current and former descendants."""
    return sum(_cpu_s(pid) for pid in [os.getpid(), *_descendants(os.getpid())])


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        children = ""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            children = (task / "children").read_text()
        for child in map(int, children.split()):
            yield child
            yield from _descendants(child)


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of all threads of a process, and of the children it has reaped."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


# -- the driver ------------------------------------------------------------------------------------


def drive(names: list[str], options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Let each variant run a turn per round, in a random order."""
    processes = {name: start(name, options) for name in names}
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    try:
        for round_index in range(options.rounds + 1):
            for name in random.sample(names, len(names)):
                process = processes[name]
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(f"{options.items}\n")
                process.stdin.flush()
                result = json.loads(process.stdout.readline())
                if round_index:  # the first round warms up
                    results[name].append(result)
    finally:
        for process in processes.values():
            process.communicate()
    return results


def start(name: str, options: argparse.Namespace) -> subprocess.Popen[str]:
    """Start the process of a variant, and wait until it is ready."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--variant", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=fixed_variables(options, **SAME_FOR_ALL),
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise SystemExit(f"the variant {name!r} did not start")
    return process


def report(results: dict[str, list[dict[str, float]]], items: int) -> None:
    """Print the table: ratios within each round, medians and quartiles over rounds."""
    limit, inlined = results[next(iter(VARIANTS))], results["__getitem__ inline"]
    rows = []
    for name, turns in results.items():
        speed = statistics.median(items / turn["wall"] for turn in turns)
        wall = [at["wall"] / turn["wall"] for at, turn in zip(limit, turns, strict=True)]
        cpu = [turn["cpu"] / at["cpu"] for at, turn in zip(inlined, turns, strict=True)]
        milliseconds = statistics.median(turn["cpu"] / items * 1e3 for turn in turns)
        ratios = with_quartiles(wall, 3), f"{milliseconds:.3f}", with_quartiles(cpu, 3)
        rows.append((name, f"{speed:.0f}", *ratios))
    heads = "variant", "items/s", "wall / limit [q1, q3]", "CPU ms/item", "CPU / inline [q1, q3]"
    print_table(heads, rows)


def main() -> None:
    """Run the comparison, or one variant of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument(
        "--keras",
        action="store_true",
        help="also measure the enqueuer of Keras 2 (requires TensorFlow 2.15)",
    )
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    arguments = parse_options(parser, rounds=1, items=4)
    if arguments.variant:
        run_variant(arguments.variant)
        return
    names = [*VARIANTS, *(OPTIONAL if arguments.keras else [])]
    report(drive(names, arguments), arguments.items)


if __name__ == "__main__":
    main()
