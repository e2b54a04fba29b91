"""Measure the speed of an `EstimatorTrial` on two workers against bare Horovod.

    python benchmarks/horovod_estimator.py [--rounds 15] [--steps 300] [--threads 1] [--quick]

Requires detcore-estimator, TensorFlow 2.15 and Horovod. ``detcore launch`` starts the workers. Both
kinds of training live in the same processes and take turns of some steps: the trial with the
plugin's controller, and the same model in a ``MonitoredTrainingSession`` with
``hvd.DistributedOptimizer`` and ``hvd.BroadcastGlobalVariablesHook``. Ratios are within rounds. The
table gives medians and quartiles over the rounds. The null control is the bare training against
itself in the following turn. The CPU time is that of both processes with the threads of Horovod.
"""

from __future__ import annotations

import argparse
import logging
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

BATCH, RECORDS, FEATURES, CLASSES = 32, 4096, 64, 10
TURNS = ("detcore", "bare", "null")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=300, help="steps of a turn")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="threads of TensorFlow's pools; 0 = TensorFlow's default",
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parse_options(parser, rounds=1, steps=10)
    if options.worker:
        _work(options)
        return
    start = ["-m", "detcore", "launch", "--launcher", "horovod", "-n", "2", "--", sys.executable]
    command = [
        __file__, "--worker", "--rounds", str(options.rounds), "--steps", str(options.steps),
        "--hidden", str(options.hidden), "--threads", str(options.threads),
    ]  # fmt: skip
    environment = fixed_variables(
        options, OMP_NUM_THREADS="1", TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0"
    )
    ended = subprocess.run(
        [sys.executable, *start, *command],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode:
        sys.exit(ended.stdout + ended.stderr)
    for line in ended.stdout.splitlines():
        if line.startswith("[rank=0] |"):
            print(line.partition("] ")[2])


def _work(options: argparse.Namespace) -> None:
    from detcore.core import DistributedContext
    from detcore.trial import PrepareOptions
    from detcore_estimator.worker_setup import prepare_worker

    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    with DistributedContext.from_env() as distributed:
        prepare_worker(
            PrepareOptions(
                seed=1,
                rank=distributed.rank,
                world_size=distributed.size,
                local_rank=distributed.local_rank,
                local_world_size=distributed.local_size,
            )
        )
        with tempfile.TemporaryDirectory() as folder:
            bare = _Bare(distributed, options)
            clock = _Clock(distributed, options, bare.train)
            _train_with_detcore(distributed, options, Path(folder), clock)
            bare.close()
        if distributed.rank == 0:
            _print(clock.times, options)


class _Clock(BenchmarkClock):
    """Ends a turn of the trial at each boundary, and starts the turns of the bare training."""

    def __init__(self, distributed: Any, options: Any, train_bare: Callable[[], None]) -> None:
        super().__init__(every=options.steps)
        self._distributed, self._options, self._train_bare = distributed, options, train_bare
        self.times: dict[str, list[tuple[float, float]]] = {name: [] for name in TURNS}
        self._is_warm = False

    def at_boundary(self, steps: int) -> bool:
        if self._is_warm:
            self._end("detcore")
        for name in TURNS[1:]:
            self._begin()
            self._train_bare()
            if self._is_warm:
                self._end(name)
        self._is_warm = True
        self._begin()
        return len(self.times["detcore"]) < self._options.rounds

    def _begin(self) -> None:
        self._distributed.barrier()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def _end(self, name: str) -> None:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        both = self._distributed.allgather((wall, cpu))
        self.times[name].append((max(w for w, _ in both), sum(c for _, c in both)))


def _print(times: dict[str, list[tuple[float, float]]], options: Any) -> None:
    rows = []
    for name in ("bare", "null", "detcore"):
        wall, cpu = (
            statistics.median(turn[part] for turn in times[name]) / options.steps * 1e6
            for part in (0, 1)
        )
        pairs = list(zip(times["bare"], times[name], strict=True))
        speed = with_quartiles([one[0] / other[0] for one, other in pairs], 3)
        cpus = with_quartiles([other[1] / one[1] for one, other in pairs], 3)
        rows.append((name, f"{wall:.0f}", f"{cpu:.0f}", speed, cpus))
    heads = "training", "us/step", "CPU us/step", "times as fast [q1, q3]", "CPU x [q1, q3]"
    print_table(heads, rows)


# -- the model and its data ------------------------------------------------------------------------


def _loss(features: Any, labels: Any, hidden: int) -> Any:
    import tensorflow as tf

    tf1 = tf.compat.v1

    def dense(inputs: Any, units: int, name: str) -> Any:
        with tf1.variable_scope(name):
            kernel = tf1.get_variable("kernel", [inputs.shape[-1], units])
            bias = tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())
        return tf.matmul(inputs, kernel) + bias

    first = tf.nn.relu(dense(features, hidden, "first"))
    second = tf.nn.relu(dense(first, hidden, "second"))
    return tf1.losses.sparse_softmax_cross_entropy(labels, dense(second, CLASSES, "logits"))


def _records() -> Any:
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, RECORDS)
    return tf.data.Dataset.from_tensor_slices(
        (rng.random((RECORDS, FEATURES), dtype="float32"), labels)
    )


def _session_config(threads: int) -> Any:
    import tensorflow as tf

    return tf.compat.v1.ConfigProto(
        allow_soft_placement=True,
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=threads,
    )


# -- bare Horovod ----------------------------------------------------------------------------------


class _Bare:
    def __init__(self, distributed: Any, options: Any) -> None:
        import horovod.tensorflow as hvd  # type: ignore[import-not-found]
        import tensorflow as tf

        tf1 = tf.compat.v1
        self._steps = options.steps
        with tf.Graph().as_default():
            tf1.set_random_seed(1)
            step = tf1.train.create_global_step()
            data = _records().shard(distributed.size, distributed.rank)
            data = data.shuffle(RECORDS, seed=1).batch(BATCH).repeat()
            features, labels = tf1.data.make_one_shot_iterator(data).get_next()
            self._loss = _loss(features, labels, options.hidden)
            optimizer = hvd.DistributedOptimizer(tf1.train.AdamOptimizer(1e-3))
            self._train_op = optimizer.minimize(self._loss, global_step=step)
            self._session = tf1.train.MonitoredTrainingSession(
                hooks=[hvd.BroadcastGlobalVariablesHook(0)],
                config=_session_config(options.threads),
            )

    def train(self) -> None:
        for _ in range(self._steps):
            self._session.run([self._train_op, self._loss])

    def close(self) -> None:
        self._session.close()


# -- detcore's trial -------------------------------------------------------------------------------


def _train_with_detcore(distributed: Any, options: Any, folder: Path, clock: Any) -> None:
    import tensorflow as tf

    import detcore_estimator
    from detcore_estimator.estimator_controller import EstimatorController

    tf1 = tf.compat.v1

    class Trial(detcore_estimator.EstimatorTrial):
        def build_estimator(self) -> Any:
            session_config = _session_config(options.threads)
            config = detcore_estimator.RunConfig(session_config=session_config)
            return detcore_estimator.Estimator(self.model_fn, config=config)

        def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
            loss = _loss(features, labels, options.hidden)
            if mode == "eval":
                return detcore_estimator.EstimatorSpec(mode, loss=loss)
            optimizer = self.context.wrap_optimizer(tf1.train.AdamOptimizer(1e-3))
            train_op = optimizer.minimize(loss, global_step=tf1.train.get_global_step())
            return detcore_estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

        def data(self) -> Any:
            return self.context.wrap_dataset(_records())

        def build_train_spec(self) -> Any:
            return detcore_estimator.TrainSpec(
                lambda: self.data().shuffle(RECORDS, seed=1).batch(BATCH)
            )

        def build_validation_spec(self) -> Any:
            return detcore_estimator.EvalSpec(lambda: self.data().batch(BATCH), steps=1)

    context = _context(distributed, folder / str(distributed.rank))
    trial = Trial(context)
    trial.context = context
    controller = EstimatorController(trial, context)
    controller.batches_per_epoch()
    try:
        controller.run(clock)
    finally:
        controller.close()


def _context(distributed: Any, folder: Path) -> Any:
    from detcore_estimator import EstimatorTrialContext

    return EstimatorTrialContext(make_setup(folder, BATCH * distributed.size, distributed))


if __name__ == "__main__":
    main()
