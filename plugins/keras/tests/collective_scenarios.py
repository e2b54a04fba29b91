"""Scenarios that each worker of test_collective_tf.py runs.

Usage: ``collective_scenarios.py NAME RANK SIZE FOLDER``. The last line of output is a JSON object.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from detcore.core import DistributedContext
from detcore.errors import DistributedError

STEPS, BATCH, FEATURES = 50, 8, 5


def connect(rank: int, size: int, nodes: list[int] | None = None, port: int = 0) -> Any:
    """Join the other workers. `nodes` has each worker's node; default: one node."""
    nodes = nodes or [0] * size
    node = nodes[rank]
    return DistributedContext(
        rank=rank,
        size=size,
        local_rank=nodes[:rank].count(node),
        local_size=nodes.count(node),
        cross_rank=node,
        cross_size=len(set(nodes)),
        chief_ip="127.0.0.1" if len(set(nodes)) > 1 else None,
        pub_port=port or None,
    )


def open_sum(rank: int, size: int) -> Any:
    from detcore_keras.distributed.shared_sum import SharedSum

    return SharedSum(connect(rank, size))


def open_collective(context: Any, *, compress: bool = False) -> Any:
    from detcore_keras.distributed.tensorflow_collective import TensorFlowCollective

    return TensorFlowCollective(context, compress=compress)


def same_everywhere(context: Any, values: Any) -> bool:
    """Whether all workers have the same bits."""
    own_values = [(np.asarray(v).dtype.name, np.asarray(v).tobytes()) for v in values]
    return all(other_values == own_values for other_values in context.allgather(own_values))


def inputs_of(rank: int, sizes: list[int], dtype: str = "float32") -> list[Any]:
    generator = np.random.default_rng(rank)
    return [(generator.standard_normal(size) * 100).astype(dtype) for size in sizes]


# -- without TensorFlow ------------------------------------------------------------------------


def sums(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Sum many shapes, types and sizes in rank order, bit for bit."""
    shared = open_sum(rank, size)
    wrong = []
    sums_and_parts = []
    # Small, growing, small again, larger than a block, and empty.
    for count, sizes in enumerate(
        [[3, 1], [0, 7], [40_000, 5], [10], [11], [12], [700_001, 3, 0], [0], [40_000, 5]]
    ):
        for dtype in ("float32", "float16", "int64"):
            parts = [inputs_of(other, sizes, dtype) for other in range(size)]
            total_parts = shared.sum_arrays(parts[rank], "test")
            sums_and_parts.append((total_parts, parts))
            if any(part.dtype != dtype for part in total_parts):
                wrong.append([count, dtype])
    mixed = [np.ones((2, 3), np.float64), np.float32(rank), np.full((2, 1), rank, np.int32)]
    total = shared.sum_arrays([np.asarray(part) for part in mixed], "mixed")
    shapes = [list(part.shape) for part in total]
    # Sums are compared at the end, because later sums must not change them.
    for index, (total_parts, parts) in enumerate(sums_and_parts):
        for own_sum, *terms in zip(total_parts, *parts, strict=True):
            expected = terms[0].copy()
            for term in terms[1:]:
                expected = expected + term
            if expected.tobytes() != own_sum.tobytes():
                wrong.append([index])
    shared._distributed.barrier()
    return {
        "wrong": wrong,
        "mixed": [float(part.sum()) for part in total],
        "shapes": shapes,
    }


def lose_one_worker(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Kill the last worker, or let it sum other shapes. The remaining workers get an error."""
    is_killed = (folder / "how").read_text() == "killed"
    shared = open_sum(rank, size)
    for _ in range(3):
        shared.sum_arrays(inputs_of(rank, [200_000]), "before")
    parts = inputs_of(rank, [200_000])
    if rank == size - 1 and is_killed:  # while the other workers wait for its part
        shared._exchange_values = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    elif rank == size - 1:
        parts = inputs_of(rank, [200_001])
    try:
        shared.sum_arrays(parts, "after")
    except DistributedError as error:
        ranks = list(getattr(error, "ranks", [getattr(error, "rank", None)]))
        return {"error": type(error).__name__, "ranks": ranks, "text": str(error)}
    return {}


def _die(stamp: Path) -> None:
    stamp.write_text(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


# -- with TensorFlow ---------------------------------------------------------------------------


def tensors(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Sum gradients of many types, eagerly and in graphs, and train."""
    from tensorflow_names import tf

    context = connect(rank, size)
    collective = open_collective(context)
    kinds = ["float32", "float64", "float16", "bfloat16", "int32"]
    values = [tf.cast(tf.reshape(tf.range(6) + rank, (2, 3)), kind) for kind in kinds]
    values += [tf.constant(0.5 + rank), tf.zeros((0, 4)), tf.fill((300, 300), 1.0 + rank)]
    total = sum(range(size))

    def is_right(sums: list[Any]) -> bool:
        expected = [np.arange(6).reshape(2, 3) * size + total] * len(kinds)
        expected += [0.5 * size + total, np.zeros((0, 4)), np.full((300, 300), size + total)]
        return all(
            value_sum.dtype == value.dtype
            and value_sum.shape == value.shape
            and np.array_equal(tf.cast(value_sum, tf.float64), expected_sum)
            for value_sum, value, expected_sum in zip(sums, values, expected, strict=True)
        )

    @tf.function
    def branches(values: Any, is_now: Any) -> Any:
        with tf.name_scope("a"):
            first = collective.sum_gradients(values)
        with tf.name_scope("b"):
            return tf.cond(is_now, lambda: collective.sum_gradients(first), lambda: first)

    compressed = open_collective(context, compress=True)
    halves = compressed.sum_gradients([tf.constant([1.0 + 2**-14]), tf.constant([6e4])])
    results = {
        "eager": is_right(collective.sum_gradients(values)),
        "graph": is_right(branches(values, tf.constant(False))),
        "twice": float(branches(values, tf.constant(True))[0][0, 0]),
        "nothing": collective.sum_gradients([]),
        "compressed": [half.numpy().tolist() for half in halves],
    }
    model = train(rank, size, collective, folder)
    weights = [variable.numpy() for variable in model.variables + list(_slots(model))]
    results["same bits"] = same_everywhere(context, weights)
    if rank == 0:
        alone = train(0, 1, None, folder)
        results["difference"] = max(
            float(np.abs(weight.numpy() - other.numpy()).max())
            for weight, other in zip(
                alone.trainable_variables, model.trainable_variables, strict=True
            )
        )
        start = build()
        results["moved"] = max(
            float(np.abs(weight.numpy() - other.numpy()).max())
            for weight, other in zip(
                start.trainable_variables, model.trainable_variables, strict=True
            )
        )
    results["failure"] = str(collective.failure)
    context.barrier()
    return results


def _slots(model: Any) -> Any:
    variables = model.optimizer.variables
    return variables() if callable(variables) else variables


def build() -> Any:
    """Build a small model."""
    from tensorflow_names import keras

    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    return model


def train(
    rank: int,
    size: int,
    collective: Any,
    folder: Path,
    steps: int = STEPS,
    before_steps: Callable[[], object] = lambda: None,
) -> Any:
    """Train in one ``tf.while_loop``. Each worker takes its share of each global batch."""
    from tensorflow_names import tf

    model = build()
    generator = np.random.default_rng(3)
    x = generator.standard_normal((STEPS, BATCH, FEATURES)).astype(np.float32)
    y = np.sin(x.sum(axis=2, keepdims=True))
    x, y = tf.constant(x[:, rank::size]), tf.constant(y[:, rank::size])

    @tf.function
    def run(steps: Any) -> Any:
        def body(index: Any) -> Any:
            with tf.GradientTape() as tape:
                error = model(x[index % STEPS], training=True) - y[index % STEPS]
                loss = tf.reduce_mean(tf.square(error))
            gradients = tape.gradient(loss, model.trainable_variables)
            if collective is not None:
                gradients = [one / size for one in collective.sum_gradients(gradients)]
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return (index + 1,)

        return tf.while_loop(lambda index: index < steps, body, (tf.constant(0),))

    model.optimizer.build(model.trainable_variables)
    before_steps()
    run(tf.constant(steps))
    return model


def train_and_kill_worker(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Sum on two machines with three workers, then train on one machine and kill a worker."""
    from tensorflow_names import tf

    port = int((folder / "port").read_text())
    context = connect(rank, size, [0, 0, 1], port)
    collective = open_collective(context)
    values = [tf.constant(one) for one in inputs_of(rank, [7, 100_000])]
    step = tf.function(lambda: collective.sum_gradients(values))
    step()
    sums = [one.numpy() for one in step()]
    parts = [inputs_of(other, [7, 100_000]) for other in range(size)]
    expected = [(one + two) + three for one, two, three in zip(*parts, strict=True)]
    results: dict[str, Any] = {
        "sums": all(np.array_equal(a, b) for a, b in zip(sums, expected, strict=True))
    }
    results["same bits"] = same_everywhere(context, sums)
    context.barrier()
    context.close()

    context = connect(rank, size)
    collective = open_collective(context)
    train(rank, size, collective, folder, steps=2)

    def die_soon() -> None:
        if rank == size - 1:
            threading.Timer(1.0, _die, [folder / "went"]).start()

    try:
        train(rank, size, collective, folder, steps=2**31 - 1, before_steps=die_soon)
    except tf.errors.OpError as error:
        results["seconds"] = time.time() - float((folder / "went").read_text())
        results["error"] = str(error)
    failure = collective.failure
    results["failure"] = [type(failure).__name__, failure.rank, str(failure)]
    try:
        collective.sum_gradients(values)
    except DistributedError as error:
        results["again"] = str(error)
    return results


if __name__ == "__main__":
    faulthandler.dump_traceback_later(240)
    name, rank, size, folder = sys.argv[1:]
    print(json.dumps(globals()[name](int(rank), int(size), Path(folder))), flush=True)
