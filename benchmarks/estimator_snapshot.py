"""Measure how long a snapshot of 1 GB stops the training of an Estimator trial.

    python benchmarks/estimator_snapshot.py [--rounds 7] [--size 1.0] [--quick]

Requires detcore-estimator and TensorFlow. A trial with variables of that size trains. At the
boundary of each round the controller takes a snapshot, which is written to `--folder` before the
next snapshot. In the same round, in random order, one thread copies arrays of the same sizes into
memory that was used before, and into new memory.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from _report import parse_options, print_table
from _trial_setup import BenchmarkClock, make_setup

GIGABYTE = 1 << 30
NUM_VARIABLES = 24
MEASURE, NEW = "copy, used memory", "copy, new memory"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=float, default=1.0, help="size of the state in GiB")
    parser.add_argument("--folder", type=Path, default=Path())
    options = parse_options(parser, rounds=1, size=0.01)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    with tempfile.TemporaryDirectory(prefix="snapshot-", dir=options.folder) as name:
        times = _measure(Path(name).absolute(), options)
    _tell(times)


def _measure(folder: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    from detcore_estimator.estimator_controller import EstimatorController

    context = _trial_context(folder)
    controller = EstimatorController(_trial_class(options.size)(context), context)
    clock = Clock(controller, folder, options)
    try:
        controller.run(clock)  # type: ignore[arg-type]  # the members of a clock that a run uses
    finally:
        controller.close()
    return clock.times


class Clock(BenchmarkClock):
    """A clock with a snapshot at each boundary. The first snapshot allocates memory."""

    def __init__(self, controller: Any, folder: Path, options: argparse.Namespace) -> None:
        import numpy as np

        super().__init__(every=2)
        self.times: dict[str, list[float]] = {}
        self._controller, self._folder = controller, folder
        self._rounds = options.rounds + 1
        length = int(options.size * GIGABYTE) // 4 // NUM_VARIABLES
        self._arrays = [np.ones(length, np.float32) for _ in range(NUM_VARIABLES)]
        self._copies = [array.copy() for array in self._arrays]

    def at_boundary(self, steps: int) -> bool:
        """Measure, in random order, and write the snapshot."""
        ways = [
            ("snapshot", self._snapshot),
            (MEASURE, self._copy),
            ("copy, new memory", self._new),
        ]
        for name, way in random.sample(ways, len(ways)):
            is_first = name == "snapshot" and not self.times.get("the first snapshot")
            key = "the first snapshot" if is_first else name
            self.times.setdefault(key, []).append(way())
        self._rounds -= 1
        return self._rounds > 0

    def _snapshot(self) -> float:
        folder = self._folder / "checkpoint"
        folder.mkdir()
        began = time.perf_counter()
        write = self._controller.snapshot(folder)
        seconds = time.perf_counter() - began
        write()
        shutil.rmtree(folder)
        return seconds

    def _copy(self) -> float:
        import numpy as np

        began = time.perf_counter()
        for copy, array in zip(self._copies, self._arrays, strict=True):
            np.copyto(copy, array)
        return time.perf_counter() - began

    def _new(self) -> float:
        began = time.perf_counter()
        copies = [array.copy() for array in self._arrays]
        seconds = time.perf_counter() - began
        del copies
        return seconds


def _trial_class(size: float) -> Any:
    import numpy as np
    import tensorflow as tf

    import detcore_estimator

    tf1 = tf.compat.v1
    length = int(size * GIGABYTE) // 4 // NUM_VARIABLES

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        zeros = tf1.zeros_initializer()
        for number in range(NUM_VARIABLES):
            tf1.get_variable(f"state{number}", [length], initializer=zeros, trainable=False)
        weight = tf1.get_variable("weight", [], initializer=zeros)
        loss = tf.reduce_mean(tf.square(features * weight - labels))
        step = tf1.train.get_global_step()
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        train = params["context"].wrap_optimizer(optimizer).minimize(loss, global_step=step)
        return detcore_estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    class Trial(detcore_estimator.EstimatorTrial):
        def build_estimator(self) -> Any:
            return detcore_estimator.Estimator(model_fn, params={"context": self.context})

        def data(self) -> Any:
            ones = np.ones((64, 1), np.float32)
            dataset = tf.data.Dataset.from_tensor_slices((ones, ones))
            return self.context.wrap_dataset(dataset).batch(8).repeat()

        def build_train_spec(self) -> Any:
            return detcore_estimator.TrainSpec(self.data)

        def build_validation_spec(self) -> Any:
            return detcore_estimator.EvalSpec(self.data, steps=1)

    return Trial


def _trial_context(folder: Path) -> Any:
    from detcore_estimator import EstimatorTrialContext

    return EstimatorTrialContext(make_setup(folder, 8))


def _tell(times: dict[str, list[float]]) -> None:
    rows = []
    measure = statistics.median(times[MEASURE])
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
        rows.append((name, f"{middle:.3f}", spread, f"{middle / measure:.2f}"))
    print_table(("what", "median, s", "range, s", "of one copy"), rows)


if __name__ == "__main__":
    main()
