"""Measure the speed of a `TFKerasTrial` on two workers against the same training on bare Horovod.

    python benchmarks/horovod_keras.py [--rounds 15] [--workers 2] [--quick]

Requires detcore-keras, TensorFlow 2.15 and Horovod. The benchmark starts the workers, which train
the same model on the same data in turns:

- plugin: a `TFKerasTrial` with its boundaries;
- graph: a loop of one unit in a ``tf.function``, with ``hvd.DistributedGradientTape``;
- loop: a ``tf.function`` for one step, with the same;
- fit: ``model.fit`` with ``hvd.DistributedOptimizer`` around a legacy optimizer, as in the examples
  of Horovod.

Ratios are within rounds. The table gives medians and quartiles over the rounds of rank 0. The CPU
time is that of the process with all threads.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _report import fixed_variables, parse_options, print_table, with_quartiles
from _trial_setup import BenchmarkClock, make_setup

SIZES = {"unit": 100}
UNITS = 4
BATCH = 32
RECORDS = 4096
FEATURES = 256
WIDTHS = {"small": 64, "large": 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default=",".join(WIDTHS))
    parser.add_argument("--worker", metavar="CASE")
    parser.add_argument("--unit", type=int, default=100, help="batches per graph call")
    options = parse_options(parser, rounds=1, only="small", unit=3)
    SIZES["unit"] = options.unit
    if options.worker:
        _work(options.worker, options.rounds)
        return
    heads = (
        "model", "variant", "us/batch", "cpu us/batch", "plugin's speed [q1, q3]", "its cpu x"
    )  # fmt: skip
    print_table(heads, _compare(options))


def _compare(options: argparse.Namespace) -> Iterator[list[str]]:
    """Start the workers of each case, and yield the rows printed by the chief."""
    for case in options.only.split(","):
        start = ["-m", "detcore", "launch", "--launcher", "horovod", "-n", str(options.workers)]
        sizes = ["--rounds", str(options.rounds), "--unit", str(options.unit)]
        command = [sys.executable, __file__, "--worker", case, *sizes]
        environment = fixed_variables(
            options, OMP_NUM_THREADS="1", TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0"
        )
        ended = subprocess.run(
            [sys.executable, *start, "--", *command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            sys.exit(ended.stdout + ended.stderr)
        for line in ended.stdout.splitlines():
            if "|" in line and line.startswith("[rank=0]"):
                yield line.partition("] ")[2].split("|")


def _work(case: str, rounds: int) -> None:
    from detcore.distributed import DistributedContext
    from detcore.trial import PrepareOptions

    with DistributedContext.from_env() as distributed:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        from detcore_keras.worker_setup import prepare_worker

        rank, size = distributed.rank, distributed.size
        prepare_worker(PrepareOptions(seed=3, rank=rank, world_size=size))
        variants = {
            "graph": _loop(case, distributed, in_graph=True),
            "loop": _loop(case, distributed, in_graph=False),
            "fit": _fit(case, distributed),
        }
        with tempfile.TemporaryDirectory() as folder:
            times = _race(case, rounds, distributed, variants, Path(folder))
    if rank == 0:
        for name in variants:
            print("|".join(_row(case, name, times)), flush=True)


def _data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, FEATURES)).astype("float32")
    return x, rng.integers(0, 10, size=RECORDS)


def _model(case: str) -> Any:
    from tensorflow import keras

    width = WIDTHS[case]
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(width, activation="relu"),
            keras.layers.Dense(width, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def _dataset(distributed: Any) -> Any:
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(_data())
    dataset = dataset.shard(distributed.size, distributed.rank).shuffle(RECORDS)
    return dataset.batch(BATCH, drop_remainder=True).prefetch(2)


def _loss() -> Any:
    from tensorflow import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _loop(case: str, distributed: Any, *, in_graph: bool) -> Callable[[], None]:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()

    model, loss_of = _model(case), _loss()
    optimizer = tf.keras.optimizers.Adam(1e-3)
    mean = tf.keras.metrics.Mean()
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
    batches = iter(_dataset(distributed).repeat())

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            loss = loss_of(y, predicted)
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        mean.update_state(loss)
        accuracy.update_state(y, predicted)

    @tf.function
    def many(batches: Any) -> None:
        for _ in tf.range(SIZES["unit"]):
            step(*next(batches))

    def train() -> None:
        for _ in range(UNITS):
            if in_graph:
                many(batches)
            else:
                for _ in range(SIZES["unit"]):
                    step(*next(batches))
            mean.result().numpy(), accuracy.result().numpy()

    return train


def _fit(case: str, distributed: Any) -> Callable[[], None]:
    import horovod.tensorflow.keras as hvd
    from tensorflow import keras

    model = _model(case)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.legacy.Adam(1e-3))
    model.compile(optimizer, _loss(), ["accuracy"], experimental_run_tf_function=False)
    dataset = _dataset(distributed).repeat()

    def train() -> None:
        model.fit(dataset, steps_per_epoch=SIZES["unit"], epochs=UNITS, verbose=0)

    return train


def _race(
    case: str,
    rounds: int,
    distributed: Any,
    variants: Mapping[str, Callable[[], None]],
    folder: Path,
) -> dict[str, list[tuple[float, float]]]:
    """Train in turns. The other variants have their turns at the boundaries of the plugin."""
    from tensorflow import keras

    from detcore_keras import TFKerasTrial, TFKerasTrialContext
    from detcore_keras.keras_controller import KerasController

    class Trial(TFKerasTrial):
        def __init__(self, context: TFKerasTrialContext) -> None:
            self.context = context

        def build_model(self) -> Any:
            model = self.context.wrap_model(_model(case))
            model.compile(keras.optimizers.Adam(1e-3), _loss(), ["accuracy"])
            return model

        def build_training_data_loader(self) -> Any:
            return self.context.wrap_dataset(_dataset(distributed), shard_dataset=False)

        def build_validation_data_loader(self) -> Any:
            return _data()

    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ("plugin", *variants)}

    class Clock(BenchmarkClock):
        def __init__(self) -> None:
            super().__init__(every=SIZES["unit"])
            self._since = _now()

        def slowest(self, seconds: float) -> float:
            return max(distributed.allgather(seconds))

        def boundary(self, *unit: Any, **more: Any) -> bool:
            distributed.allgather((unit, more))  # the workers agree on the reported value like this
            return super().boundary(*unit, **more)

        def at_boundary(self, steps: int) -> bool:
            if steps % (SIZES["unit"] * UNITS):
                return True
            times["plugin"].append(_since(self._since))
            names = sorted(variants, reverse=bool(len(times["plugin"]) % 2))
            for name in names:
                distributed.barrier()
                begun = _now()
                variants[name]()
                times[name].append(_since(begun))
            distributed.barrier()
            self._since = _now()
            # The first two rounds trace functions and adapt the unit size.
            return len(times["plugin"]) < rounds + 2

    context = TFKerasTrialContext(make_setup(folder, BATCH * distributed.size, distributed))
    controller = KerasController(Trial(context), context)
    controller.run(Clock())  # type: ignore[arg-type]  # the measured part of a clock
    controller.close()
    return {name: measured[2:] for name, measured in times.items()}


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(begun: tuple[float, float]) -> tuple[float, float]:
    wall, cpu = _now()
    return wall - begun[0], cpu - begun[1]


def _row(case: str, name: str, times: Mapping[str, Sequence[tuple[float, float]]]) -> list[str]:
    batches = SIZES["unit"] * UNITS
    turns, plugin_turns = times[name], times["plugin"]
    speeds = [turn[0] / plugin[0] for turn, plugin in zip(turns, plugin_turns, strict=True)]
    costs = [plugin[1] / turn[1] for turn, plugin in zip(turns, plugin_turns, strict=True)]
    wall, cpu = (statistics.median(t[i] for t in turns) * 1e6 / batches for i in (0, 1))
    plugin_us = statistics.median(t[0] for t in plugin_turns) * 1e6 / batches
    cpu_us = statistics.median(t[1] for t in plugin_turns) * 1e6 / batches
    return [
        case, name, f"{wall:.0f} (plugin {plugin_us:.0f})", f"{cpu:.0f} (plugin {cpu_us:.0f})",
        with_quartiles(speeds, 2), f"{statistics.median(costs):.2f}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
