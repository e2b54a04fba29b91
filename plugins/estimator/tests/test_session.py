"""Sessions with hooks: fetches, call order, and conflicts between hooks."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from detcore_estimator.graph.hooked_session import HookedSession
from detcore_estimator.tensorflow_versions import tf, tf1


class RecordingHook(tf1.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow has no types
    """A hook that requests its arguments and records the results."""

    def __init__(self, *requests: Any) -> None:
        self._requests = list(requests)
        self.results: list[Any] = []
        self.metadata: list[Any] = []

    def before_run(self, run_context: Any) -> Any:
        return self._requests[len(self.results) % len(self._requests)]

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.results.append(run_values.results)
        self.metadata.append(run_values.run_metadata)


@pytest.fixture
def graph() -> Any:
    with tf.Graph().as_default() as new_graph:
        count = tf1.get_variable("count", [], tf.int64, tf1.zeros_initializer())
        fed = tf1.placeholder_with_default(tf.constant(1, tf.int64), [], name="fed")
        tf.identity(tf1.assign_add(count, fed), name="step")
    return new_graph


def open_session(graph: Any, *hooks: Any) -> contextlib.closing[HookedSession]:
    return contextlib.closing(HookedSession(graph, scaffold=tf1.train.Scaffold(), hooks=hooks))


def tensor(graph: Any, name: str) -> Any:
    return graph.get_tensor_by_name(f"{name}:0")


def test_hooks_get_their_fetches(graph: Any) -> None:
    arguments = tf1.train.SessionRunArgs
    fed = tensor(graph, "fed")
    single = RecordingHook(arguments(fed))
    nested = RecordingHook(arguments({"a": [fed, "fed:0"], "b": (fed,)}))
    changing = RecordingHook(arguments(fed), None, arguments([fed]), arguments("fed:0"))
    with open_session(graph, single, nested, changing) as session:
        step = session.make_step([tensor(graph, "step")])
        assert [step()[0] for _ in range(8)] == list(range(1, 9))
        session.end()
    assert single.results == [1] * 8
    assert nested.results == [{"a": [1, 1], "b": (1,)}] * 8
    assert changing.results == [1, None, [1], 1] * 2


def test_two_hooks_cannot_feed_one_tensor(graph: Any) -> None:
    fed = tensor(graph, "fed")
    first = RecordingHook(tf1.train.SessionRunArgs(None, {fed: 5}))
    second = RecordingHook(tf1.train.SessionRunArgs(None, {fed: 6}))
    refused = pytest.raises(RuntimeError, match="the hook RecordingHook feeds")
    with open_session(graph, first, second) as session, refused:
        session.make_step(tensor(graph, "step"))()


def test_run_options_and_metadata(graph: Any) -> None:
    traced = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
    slow = tf1.RunOptions(timeout_in_ms=60_000)
    tracing = RecordingHook(tf1.train.SessionRunArgs(None, options=traced))
    waiting = RecordingHook(tf1.train.SessionRunArgs(None, options=slow))
    with open_session(graph, tracing, waiting) as session:
        session.make_step(tensor(graph, "step"))()
    assert tracing.metadata[0].step_stats.dev_stats
    assert waiting.metadata[0] is tracing.metadata[0]


def test_failed_session_is_closed(graph: Any) -> None:
    class Failing(tf1.train.SessionRunHook):  # type: ignore[misc]
        def after_create_session(self, session: Any, coord: Any) -> None:
            self.session = session
            raise ValueError("on purpose")

    hook = Failing()
    with pytest.raises(ValueError, match="on purpose"):
        open_session(graph, hook)
    with pytest.raises(RuntimeError, match="closed"):
        hook.session.run(tensor(graph, "step"))


def test_queue_runners_are_started(graph: Any) -> None:
    with graph.as_default():
        queue = tf1.FIFOQueue(4, [tf.int64], shapes=[[]])
        more = queue.enqueue(tf.constant(7, tf.int64))
        tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [more]))
        element = queue.dequeue()
    with open_session(graph) as session:
        step = session.make_step(element)
        assert [step() for _ in range(10)] == [7] * 10
