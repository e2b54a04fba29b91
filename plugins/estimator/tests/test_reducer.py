"""`make_metric`: structures, types, resets, ranks, and errors of reducers."""

from __future__ import annotations

import collections
import gc
import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import detcore_estimator
from detcore.distributed import DistributedContext
from detcore.errors import ContextStateError, MetricError, MetricTypeError
from detcore.metrics import MetricReducer
from detcore_estimator.distributed.metric_reducers import Reducers
from detcore_estimator.estimator_context import EstimatorTrialContext
from detcore_estimator.tensorflow_versions import tf, tf1, tf_estimator

DATA = np.arange(1, 8, dtype=np.float32)  # 7 records in batches of 2: the last batch is smaller


class Mean(MetricReducer):
    """The mean over all elements."""

    def __init__(self) -> None:
        self.sum = 0.0
        self.count = 0

    def accumulate(self, metric: Any) -> Any:
        self.sum += float(np.sum(metric))
        self.count += np.size(metric)
        return self.sum, self.count

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        sums, counts = zip(*per_slot_metrics, strict=True)
        return sum(sums) / sum(counts)


def mean(batches: list[Any]) -> Any:
    return np.mean(np.hstack(batches))


Build = Callable[[Any, Reducers], Any]


class Evaluation:
    """A reusable evaluation graph. `build` creates metrics from the tensor of a batch."""

    def __init__(
        self, build: Build, data: Any = DATA, distributed: Any = None, batch_size: int = 2
    ) -> None:
        self.reducers = Reducers(distributed or DistributedContext())
        self.graph = tf.Graph()
        with self.graph.as_default():
            dataset = tf.data.Dataset.from_tensor_slices(data).batch(batch_size)
            self.iterator = tf1.data.make_initializable_iterator(dataset)
            self.metrics = build(self.iterator.get_next(), self.reducers)
            self.local_init = tf1.local_variables_initializer()
        # Ranks wait for each other inside operations, so each session needs its own threads.
        config = tf1.ConfigProto(use_per_session_threads=True, inter_op_parallelism_threads=2)
        self.session = tf1.Session(graph=self.graph, config=config)

    def run(self, *, by_init: bool = True, by_begin: bool = False, most: int = 99) -> Any:
        """Evaluate, and return the values in the structure of the metrics."""
        if by_init:
            self.session.run(self.local_init)
        if by_begin:
            self.reducers.begin_evaluation()
        self.session.run(self.iterator.initializer)
        updates = tf.nest.map_structure(lambda pair: pair.update, self.metrics)
        for _ in range(most):
            try:
                self.session.run(updates)
            except tf.errors.OutOfRangeError:
                break
        return self.session.run(tf.nest.map_structure(lambda pair: pair.value, self.metrics))


class Pair:
    """A metric, as a leaf of a structure."""

    def __init__(self, ops: tuple[Any, Any]) -> None:
        self.value, self.update = ops


def metric_of(
    reducer: Any = mean, dtype: Any = np.float64, take: Any = lambda batch: batch
) -> Build:
    return lambda batch, reducers: Pair(reducers.make_metric(take(batch), reducer, dtype))


def values_seen(take: Any, data: Any = DATA) -> list[Any]:
    """Return the values of all batches that a function reducer receives."""
    values: list[Any] = []

    def keep(batches: list[Any]) -> float:
        values.extend(batches)
        return 0.0

    Evaluation(metric_of(keep, take=take), data).run()
    return values


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("take", "first"),
    [
        (lambda b: tf.reduce_sum(b), 3.0),
        (lambda b: [b, b * 2], [[1.0, 2.0], [2.0, 4.0]]),
        (lambda b: (b,), ([1.0, 2.0],)),
        (lambda b: Point(b, b + 1), Point([1.0, 2.0], [2.0, 3.0])),
        (lambda b: {"b": b, "a": b + 1}, {"b": [1.0, 2.0], "a": [2.0, 3.0]}),
        (lambda b: {"a": {1: b}, "b": (b, 2)}, {"a": {1: [1.0, 2.0]}, "b": ([1.0, 2.0], 2)}),
        (lambda b: [b, np.array([[1, 2]]), 7], [[1.0, 2.0], [[1, 2]], 7]),
    ],
)
def test_structures_are_preserved(take: Any, first: Any) -> None:
    values = values_seen(take)
    assert len(values) == 4
    # `repr` includes the types of the structures and the order of the keys.
    assert repr(tf.nest.map_structure(lambda value: value.tolist(), values[0])) == repr(first)


def test_constants_and_strings() -> None:
    build = metric_of(lambda batches: len(batches) * batches[0], take=lambda batch: 3.5)
    assert Evaluation(build).run(most=4) == 14.0
    words = values_seen(lambda batch: batch, np.array(["a", "é", "c"]))
    assert [word for batch in words for word in batch] == [b"a", "é".encode(), b"c"]


class OnlyAccumulate:
    def accumulate(self, metric: Any) -> Any:
        return metric


class Uncopyable(Mean):
    """A reducer that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class CopiesToItself(Mean):
    def __deepcopy__(self, memo: Any) -> Any:
        return self


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("take", lambda b: {}, "empty dict"),
        ("take", lambda b: [], "empty list"),
        ("take", lambda b: None, r"metric has None \(NoneType\)"),
        ("take", lambda b: [b, None], "metric has None"),
        ("take", lambda b: object(), "cannot be converted to a tensor"),
        ("take", lambda b: tf.sparse.from_dense(b), "(?s)SparseTensor.*to_dense"),
        ("take", lambda b: [tf.ragged.constant([[1], [2, 3]])], "RaggedTensor"),
        ("take", lambda b: tf.no_op(), "cannot be converted to a tensor"),
        ("reducer", OnlyAccumulate(), "has no method cross_slot_reduce"),
        ("reducer", 3, "has no method accumulate or cross_slot_reduce"),
        ("reducer", Mean, r"(?s)the class Mean, not an instance.*Mean\(\)"),
        ("reducer", lambda: 0, "cannot be called with one argument"),
        ("reducer", lambda a, b: 0, "cannot be called with one argument"),
        ("reducer", Uncopyable(), r"(?s)cannot be copied \(TypeError.*__deepcopy__"),
        ("reducer", CopiesToItself(), "the same object"),
        *(
            ("dtype", dtype, "numpy_dtype is")
            for dtype in (None, "float7", "datetime64[s]", [("a", "i4")], np.void, tf.resource, 3)
        ),
    ],
)
def test_wrong_metric_arguments(name: str, value: Any, match: str) -> None:
    with pytest.raises(MetricTypeError, match=match) as caught:
        Evaluation(metric_of(**{name: value}))
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("dtype", "result", "expected"),
    [
        (np.float32, 0.1, np.float32(0.1)),
        (float, 0.1, np.float64(0.1)),
        (int, 2**40, np.int64(2**40)),
        ("int32", np.float64(12.0), np.int32(12)),
        (np.dtype(">f4"), 1.5, np.float32(1.5)),
        (bool, np.array([[True], [False]]), np.array([[True], [False]])),
        (np.complex64, 1 + 2j, np.complex64(1 + 2j)),
        (np.uint8, np.zeros((0, 3)), np.zeros((0, 3), np.uint8)),
        (tf.float32, 2, np.float32(2)),
        (np.float64, np.arange(24.0).reshape(2, 3, 4).T, np.arange(24.0).reshape(2, 3, 4).T),
    ],
)
def test_types_and_shapes(dtype: Any, result: Any, expected: Any) -> None:
    value = np.asarray(Evaluation(metric_of(lambda batches: result, dtype)).run())
    assert value.dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(value, expected)
    assert value.shape == np.shape(expected)


@pytest.mark.parametrize("dtype", [str, object, "U3", "S"])
def test_strings(dtype: Any) -> None:
    values = Evaluation(metric_of(lambda batches: ["é", "b"], dtype)).run()
    assert values.tolist() == ["é".encode(), b"b"]
    assert Evaluation(metric_of(lambda batches: b"x", dtype)).run() == b"x"


@pytest.mark.parametrize(
    ("result", "match"),
    [
        (None, "returned None"),
        ([1.0, None], "a part of it is None"),
        ({"a": 1}, r"returned \{'a': 1\} \(dict\)"),
        ([[1, 2], [3]], "cannot be converted to an array of type float32"),
        ("high", "cannot be converted to an array of type float32"),
    ],
)
def test_wrong_reducer_results(result: Any, match: str) -> None:
    evaluation = Evaluation(metric_of(lambda batches: result, np.float32))
    with pytest.raises(tf.errors.OpError, match=match):
        evaluation.run()
    with pytest.raises(MetricError, match=match):
        raise evaluation.reducers.take_error() or AssertionError


def test_function_reducers() -> None:
    class Callable_:
        def __call__(self, batches: list[Any]) -> int:
            return len(batches)

    assert Evaluation(metric_of(Callable_())).run() == 4
    assert Evaluation(metric_of(len)).run() == 4
    build = metric_of(np.sum, take=lambda batch: tf.reduce_sum(batch))
    assert Evaluation(build).run() == 28
    assert Evaluation(metric_of(lambda batches, weight=2.0: weight * len(batches))).run() == 8


@pytest.mark.parametrize(("by_init", "by_begin"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("reducer", [mean, Mean()], ids=["function", "object"])
def test_each_evaluation_starts_fresh(reducer: Any, by_init: bool, by_begin: bool) -> None:
    evaluation = Evaluation(metric_of(reducer))
    assert evaluation.run() == 4.0
    assert evaluation.run(by_init=by_init, by_begin=by_begin, most=1) == 1.5
    assert evaluation.run(by_init=by_init, by_begin=by_begin) == 4.0


def test_reducer_keeps_its_initial_state() -> None:
    reducer = Mean()
    reducer.sum, reducer.count = 93.0, 3  # (93 + 28) / (3 + 7)
    first = Evaluation(metric_of(reducer))
    reducer.sum = 1e9
    for _ in range(2):
        assert first.run() == pytest.approx(12.1)
    assert (reducer.sum, reducer.count) == (1e9, 3)


class SharedState(MetricReducer):
    """A reducer with state in a class attribute, which copies share."""

    batches: list[Any] = []

    def accumulate(self, metric: Any) -> Any:
        self.batches.append(metric)
        return self.batches

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        return len(per_slot_metrics[0])

    def reset(self) -> None:
        self.batches.clear()


def test_reset_clears_shared_state() -> None:
    evaluation = Evaluation(metric_of(SharedState()))
    assert [evaluation.run() for _ in range(2)] == [4, 4]


def test_reducer_can_hold_the_context() -> None:
    context = EstimatorTrialContext.from_config({})

    class Holder(Mean):
        def __init__(self) -> None:
            super().__init__()
            self.context = context
            self.features = context.experimental

        def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
            assert self.context is context
            assert self.features is context.experimental
            return super().cross_slot_reduce(per_slot_metrics)

    assert Evaluation(metric_of(Holder())).run() == 4.0


def test_one_reducer_for_several_metrics() -> None:
    shared = Mean()

    def build(batch: Any, reducers: Reducers) -> Any:
        return {
            "plain": Pair(reducers.make_metric(batch, shared, float)),
            "double": Pair(reducers.make_metric(batch * 2, shared, float)),
            "square": Pair(reducers.make_metric([batch, batch], lambda b: len(b), int)),
        }

    assert Evaluation(build).run() == {"plain": 4.0, "double": 8.0, "square": 4}


def test_reducer_may_modify_its_input() -> None:
    def total(batches: list[Any]) -> float:
        return float(sum(batch.sum() for batch in batches))

    class Spoiler(Mean):
        def accumulate(self, metric: Any) -> Any:
            metric *= 0
            return super().accumulate(metric)

    def build(batch: Any, reducers: Reducers) -> Any:
        doubled = tf.identity(batch * 2)
        spoiled = reducers.make_metric(doubled, Spoiler(), float)
        with tf.control_dependencies([spoiled[1]]):
            later = tf.identity(doubled)
        return [Pair(spoiled), Pair(reducers.make_metric(later, total, float))]

    assert Evaluation(build).run() == [0.0, 56.0]


def test_no_batches() -> None:
    evaluation = Evaluation(metric_of(mean))
    evaluation.run()
    for options in ({"by_init": True}, {"by_init": False, "by_begin": True}):
        with pytest.raises(tf.errors.OpError, match="no worker had a batch"):
            evaluation.run(most=0, **options)
        assert isinstance(evaluation.reducers.take_error(), MetricError)


def test_make_metric_outside_a_graph() -> None:
    if not tf.executing_eagerly():
        pytest.skip("there is always a graph where V2 behaviour is off")
    with pytest.raises(ContextStateError, match="outside of a graph"):
        Reducers(DistributedContext()).make_metric(1.0, mean, float)


@pytest.mark.parametrize("error", [ValueError, StopIteration, KeyError, MemoryError])
@pytest.mark.parametrize("where", ["accumulate", "cross_slot_reduce"])
def test_reducer_errors_are_raised(error: Any, where: str) -> None:
    def fail(self: Any, metric: Any) -> Any:
        raise error("the user's own text")  # line in the traceback

    evaluation = Evaluation(metric_of(type("Broken", (Mean,), {where: fail})()))
    evaluation.session.run([evaluation.local_init, evaluation.iterator.initializer])
    if where == "cross_slot_reduce":
        evaluation.session.run(evaluation.metrics.update)
    fails = evaluation.metrics.update if where == "accumulate" else evaluation.metrics.value
    with pytest.raises(tf.errors.UnknownError, match="the user's own text") as caught:
        evaluation.session.run(fails)
    assert "line in the traceback" in caught.value.message
    original = evaluation.reducers.take_error()
    assert type(original) is error
    assert "line in the traceback" in "".join(traceback.format_exception(original))
    assert evaluation.reducers.take_error() is None


def test_evaluation_forgets_earlier_errors() -> None:
    evaluation = Evaluation(metric_of(lambda batches: 1 / 0))
    with pytest.raises(tf.errors.OpError):
        evaluation.run()
    evaluation.reducers.begin_evaluation()
    assert evaluation.reducers.take_error() is None


def test_graphs_are_released() -> None:
    reducers = Reducers(DistributedContext())

    def build(batch: Any, _: Any) -> Any:
        return Pair(reducers.make_metric([batch], Mean(), float))

    evaluation = Evaluation(build)
    evaluation.run()
    graph = weakref.ref(evaluation.graph)
    evaluation.session.close()
    del evaluation
    gc.collect()
    assert graph() is None
    reducers.begin_evaluation()


# -- several ranks ---------------------------------------------------------------------------------


class Rank:
    """A rank in its own thread. It detects exchanges in different orders."""

    def __init__(self, rank: int, slots: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.slots, self.barrier = rank, slots, barrier

    def exchange(self, name: str, stuff: Any) -> list[Any]:
        self.slots[self.rank] = (name, stuff)
        self.barrier.wait()
        slots = list(self.slots)
        self.barrier.wait()
        assert len({name for name, _ in slots}) == 1, slots
        return [stuff for _, stuff in slots]

    def gather(self, stuff: Any) -> Any:
        everything = self.exchange("gather", stuff)
        return everything if self.rank == 0 else None

    def broadcast(self, stuff: Any) -> Any:
        return self.exchange("broadcast", stuff)[0]


def run_ranks(size: int, build: Build, data: Any = DATA, batch_size: int = 2) -> list[Any]:
    """Evaluate on several ranks, and return values or exceptions by rank."""
    barrier, slots = threading.Barrier(size, timeout=20), [None] * size

    def work(rank: int) -> Any:
        distributed = Rank(rank, slots, barrier)
        evaluation = Evaluation(build, data[rank::size], distributed, batch_size)
        try:
            return evaluation.run()
        except tf.errors.OpError:
            return evaluation.reducers.take_error()

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(work, range(size), timeout=60))


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_value_ignores_the_number_of_ranks(size: int) -> None:
    def build(batch: Any, reducers: Reducers) -> Any:
        return [Pair(reducers.make_metric(batch, reducer, float)) for reducer in (mean, Mean())]

    assert run_ranks(size, build) == [[4.0, 4.0]] * size
    for in_order in run_ranks(size, metric_of(np.hstack), batch_size=1):
        assert in_order.tolist() == DATA.tolist()


def test_ranks_without_batches_are_skipped() -> None:
    counts: list[int] = []

    class Counting(Mean):
        def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
            counts.append(len(per_slot_metrics))
            return super().cross_slot_reduce(per_slot_metrics)

    assert run_ranks(3, metric_of(Counting()), DATA[:2], 1) == [1.5] * 3
    assert counts == [2]  # only the chief reduces, once


def test_ranks_exchange_metrics_in_one_order() -> None:
    def build(batch: Any, reducers: Reducers) -> Any:
        pairs = [Pair(reducers.make_metric(batch * i, mean, float)) for i in range(6)]
        # Ranks fetch in different orders, but must exchange in the graph's order.
        return pairs if reducers._distributed.rank % 2 else pairs[::-1]

    results = run_ranks(4, build)
    assert results[1] == [4.0 * i for i in range(6)]
    assert results[0] == results[1][::-1]


def test_errors_reach_all_ranks() -> None:
    results = run_ranks(3, metric_of(lambda batches: {}["missing"]))
    assert isinstance(results[0], KeyError)
    for result in results[1:]:
        assert isinstance(result, MetricError)
        assert "failed on rank 0: KeyError: 'missing'" in str(result)


def test_documentation_example() -> None:
    page = (Path(__file__).parents[3] / "docs" / "estimator.md").read_text("utf-8")
    blocks = page.split("```python\n")[1:]
    example = next(block for block in blocks if "def eval_metric_ops" in block)
    names: dict[str, Any] = {"de": detcore_estimator, "np": np}
    exec(example.split("```")[0], names)

    def build(batch: Any, reducers: Reducers) -> Any:
        metrics = names["eval_metric_ops"](reducers, batch["x"])
        return {name: Pair(ops) for name, ops in metrics.items()}

    assert Evaluation(build, {"x": DATA}).run() == {"mean": 4.0}


# -- without a trial -------------------------------------------------------------------------------


def test_make_metric_in_tf_estimator(tmp_path: Any) -> None:
    module: Any = tf_estimator()
    if module is None:
        pytest.skip("this TensorFlow has no tf.estimator")
    context = EstimatorTrialContext.from_config({})

    def model_fn(features: Any, labels: Any, mode: Any) -> Any:
        weight = tf1.get_variable("weight", initializer=1.0, use_resource=True)
        return module.EstimatorSpec(
            mode,
            loss=tf.reduce_sum(features) * weight,
            train_op=tf1.assign_add(tf1.train.get_or_create_global_step(), 1),
            eval_metric_ops={
                f"metric{index}": context.make_metric(features * weight, reducer, np.float32)
                for index, reducer in enumerate((mean, Mean()))
            },
        )

    estimator = module.Estimator(model_fn, model_dir=str(tmp_path))

    def input_fn() -> Any:
        return tf.data.Dataset.from_tensor_slices(DATA).batch(2)

    estimator.train(input_fn, steps=1)
    for _ in range(2):
        result = estimator.evaluate(input_fn)
        assert (result["metric0"], result["metric1"]) == (4.0, 4.0)
