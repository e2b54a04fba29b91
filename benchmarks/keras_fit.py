"""Measure the speed of training and validation of a `TFKerasTrial` against bare Keras.

    python benchmarks/keras_fit.py [--backend jax] [--rounds 9] [--only tf.data,arrays] [--quick]

Requires detcore-keras and the back end. Only TensorFlow reads "tf.data". Each variant is a separate
process that waits between turns. The parent gives each of them a turn, in a new random order each
round. A ratio compares a variant with bare Keras within a round. The table gives medians and
quartiles over rounds. The null control is bare Keras against itself: differences within its spread
mean nothing, and then the CPU column counts.
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
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _report import fixed_variables, parse_options, print_table, with_quartiles
from _trial_setup import BenchmarkClock, make_setup

CASES = ("tf.data", "arrays", "cnn", "evaluate", "evaluate arrays")
VARIANTS = ("bare", "null", "hooks", "fast")
UNIT = 100
BATCHES = {"tf.data": 400, "arrays": 400, "cnn": 60, "evaluate": 400, "evaluate arrays": 400}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="tensorflow")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="threads of TensorFlow's pools; 0 = TensorFlow's default",
    )
    parser.add_argument(
        "--batches", type=int, default=1 << 40, help="maximum number of batches in a turn"
    )
    parser.add_argument("--worker", nargs=2, metavar=("CASE", "VARIANT"))
    options = parse_options(parser, rounds=1, only="tf.data,evaluate arrays", batches=4)
    for case in BATCHES:
        BATCHES[case] = min(BATCHES[case], options.batches)
    if options.worker:
        _serve(*options.worker, threads=options.threads)
        return
    heads = "case", "variant", "us/batch", "cpu us/batch", "times as fast [q1, q3]", "cpu x"
    cases = (case.strip() for case in options.only.split(","))
    print_table(heads, (row for case in cases for row in _compare(case, options)))


# -- the parent: turns and ratios ------------------------------------------------------------------


def _compare(case: str, options: argparse.Namespace) -> list[list[str]]:
    left_out = {"hooks"} if case.startswith("evaluate") else set()
    if options.quick:
        left_out.add("null")
    names = [name for name in VARIANTS if name not in left_out]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with (
        contextlib.ExitStack() as stack
    ):  # closing the stack closes the inputs of the processes, which ends them
        workers = {name: stack.enter_context(_start(case, name, options)) for name in names}
        for _ in range(options.rounds):
            for name in random.sample(names, len(names)):
                times[name].append(_turn(workers[name]))
    return [_row(case, name, times) for name in names]


def _start(case: str, name: str, options: argparse.Namespace) -> subprocess.Popen[str]:
    environment = fixed_variables(
        options, OMP_NUM_THREADS="1", TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0"
    )
    environment["KERAS_BACKEND"] = options.backend
    worker = subprocess.Popen(
        [
            sys.executable, __file__, "--worker", case, name,
            "--threads", str(options.threads), "--batches", str(options.batches),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )  # fmt: skip
    _read(worker)  # ready, after a warm-up
    return worker


def _turn(worker: subprocess.Popen[str]) -> tuple[float, float]:
    assert worker.stdin is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    wall, cpu = json.loads(_read(worker))
    return wall, cpu


def _read(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith("@"):
            return line[1:]
    raise SystemExit(f"a worker ended with code {worker.wait()}")


def _row(case: str, name: str, times: dict[str, list[tuple[float, float]]]) -> list[str]:
    count = BATCHES[case]
    wall = statistics.median(t[0] for t in times[name]) / count * 1e6
    cpu = statistics.median(t[1] for t in times[name]) / count * 1e6
    pairs = list(zip(times["bare"], times[name], strict=True))
    speed = with_quartiles([bare[0] / turn[0] for bare, turn in pairs], 2)
    cpus = with_quartiles([turn[1] / bare[1] for bare, turn in pairs], 3)
    label = {"null": "Keras alone, null control", "bare": "Keras alone"}.get(
        name, f"detcore, {name}"
    )
    return [case, label, f"{wall:.0f}", f"{cpu:.0f}", speed, cpus]


# -- a worker: one variant, one turn at a time -----------------------------------------------------


def _serve(case: str, variant: str, *, threads: int) -> None:
    from detcore.trial import PrepareOptions
    from detcore_keras.frameworks import backend
    from detcore_keras.worker_setup import prepare_worker

    if backend.name == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)

    prepare_worker(PrepareOptions(seed=1))
    run = _bare(case) if variant in ("bare", "null") else _detcore(case, variant)
    run(BATCHES[case], lambda: _wait(first=True), _wait)


_started: list[float] = []


def _wait(first: bool = False) -> None:
    """End a turn, and wait for the next turn. Exits when the parent is done."""
    if first:
        print("@ready", flush=True)
    else:
        wall, cpu = time.perf_counter() - _started[0], time.process_time() - _started[1]
        print("@" + json.dumps([wall, cpu]), flush=True)
    if not sys.stdin.readline():
        os._exit(0)
    _started[:] = [time.perf_counter(), time.process_time()]


def _model(case: str) -> Any:
    from detcore_keras.frameworks import keras

    layers = keras.layers
    if case == "cnn":
        parts = [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPool2D(),
            layers.Flatten(),
        ]
    else:
        parts = [keras.Input((64,)), layers.Dense(64, activation="relu")]
    return keras.Sequential([*parts, layers.Dense(10)])


def _compile(model: Any) -> None:
    from detcore_keras.frameworks import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])


def _records(case: str, *, validation: bool = False) -> tuple[Any, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    count = 32 * BATCHES[case] if validation else 1792
    shape = (28, 28, 1) if case == "cnn" else (64,)
    return rng.random((count, *shape), dtype="float32"), rng.integers(0, 10, count)


def _dataset(case: str, *, validation: bool = False) -> Any:
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(_records(case, validation=validation))
    return dataset.batch(32) if validation else dataset.shuffle(1792, seed=1).batch(32)


def _uses_arrays(case: str) -> bool:
    from detcore_keras.frameworks import backend

    return case.endswith("arrays") or backend.name != "tensorflow"


Run = Callable[[int, Callable[[], None], Callable[[], None]], None]


def _bare(case: str) -> Run:
    def run(count: int, ready: Callable[[], None], turn: Callable[[], None]) -> None:
        from detcore_keras.frameworks import keras

        model = _model(case)
        _compile(model)
        if case.startswith("evaluate"):
            x, y = _records(case, validation=True)
            data = (
                {"x": x, "y": y} if _uses_arrays(case) else {"x": _dataset(case, validation=True)}
            )

            def again() -> None:
                model.evaluate(**data, batch_size=32 if "y" in data else None, verbose=0)

            again()
            ready()
            while True:
                again()
                turn()

        # One fit like that of detcore. The callback only has epoch methods, so it costs nothing.
        class Turns(keras.callbacks.Callback):  # type: ignore[misc]
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                if epoch == 1:
                    ready()
                elif epoch > 1:
                    turn()

        options = {"verbose": 0, "callbacks": [Turns()], "epochs": 1 << 20}
        if _uses_arrays(case):
            x, y = _records(case)
            per_epoch = len(x) // 32
            repeat = -(-count // per_epoch)
            import numpy as np

            # The dataset has the records of one turn, so that one epoch is one turn.
            x, y = (np.concatenate([a] * repeat)[: count * 32] for a in (x, y))
            model.fit(x, y, batch_size=32, **options)
        else:
            model.fit(_dataset(case).repeat(), steps_per_epoch=count, **options)

    return run


class _TurnClock(BenchmarkClock):
    """A clock with a boundary after each unit and turns of `count` batches."""

    def __init__(
        self, count: int, unit: int, ready: Callable[[], None], turn: Callable[[], None]
    ) -> None:
        super().__init__(every=unit, batches_per_epoch=56)
        self._count, self._ready, self._turn = count, ready, turn

    def at_boundary(self, steps: int) -> bool:
        if steps == 2 * self._count:
            self._ready()
        elif steps > self._count and steps % self._count == 0:
            self._turn()
        return True


def _detcore(case: str, variant: str) -> Run:
    def run(count: int, ready: Callable[[], None], turn: Callable[[], None]) -> None:
        from detcore_keras.keras_controller import KerasController

        context = _context(Path(tempfile.mkdtemp(prefix="detcore-benchmark-")))
        trial = _trial_class(case, variant)(context)
        controller = KerasController(trial, context)
        if case.startswith("evaluate"):
            controller.validate()
            ready()
            while True:
                controller.validate()
                turn()
        unit = min(UNIT, count)
        controller.run(_TurnClock(count, unit, ready, turn))  # type: ignore[arg-type]

    return run


def _trial_class(case: str, variant: str) -> Any:
    from detcore_keras import TFKerasTrial
    from detcore_keras.frameworks import keras

    class Hooks(keras.callbacks.Callback):  # type: ignore[misc]
        _supports_tf_logs = True

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    class Trial(TFKerasTrial):
        def build_model(self) -> Any:
            model = self.context.wrap_model(_model(case))
            _compile(model)
            return model

        def build_training_data_loader(self) -> Any:
            if _uses_arrays(case):
                return _records(case)
            return self.context.wrap_dataset(_dataset(case))

        def build_validation_data_loader(self) -> Any:
            if _uses_arrays(case):
                return _records(case, validation=True)
            return self.context.wrap_dataset(_dataset(case, validation=True))

        def keras_callbacks(self) -> list[Any]:
            return [Hooks()] if variant == "hooks" else []

    return Trial


def _context(folder: Path) -> Any:
    from detcore_keras import TFKerasTrialContext

    return TFKerasTrialContext(make_setup(folder, 32))


if __name__ == "__main__":
    main()
