"""Run sessions through ``SessionRunHook`` objects."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from detcore_estimator.tensorflow_versions import quiet_deprecations, tf1

_logger = logging.getLogger("detcore.estimator")

_JOIN_S = 120
_OF_CALLER = -1  # among the indices of the hooks that request values


class OpenSession:
    """A session of one graph with initialized variables and running queue threads.

    Args:
        graph: The graph, which may still grow.
        scaffold: The graph's finalized ``tf.compat.v1.train.Scaffold``.
        config: ``ConfigProto`` of the session; None = TensorFlow's default.
        restore: Restores the variables instead of the scaffold's ``init_op``. Variables without a
            value afterwards are initialized.
    """

    def __init__(
        self,
        graph: Any,
        *,
        scaffold: Any,
        config: Any = None,
        restore: Callable[[Any], None] | None = None,
    ) -> None:
        self.graph = graph
        self.coordinator = tf1.train.Coordinator()
        with contextlib.ExitStack() as stack:
            self.session = tf1.Session(graph=graph, config=config)
            stack.callback(self.close)
            self._initialize_variables(scaffold, restore)
            with graph.as_default():
                if graph.get_collection(tf1.GraphKeys.QUEUE_RUNNERS):
                    tf1.train.start_queue_runners(self.session, self.coordinator)
            stack.pop_all()

    def close(self) -> None:
        """Stop the threads and close the session; idempotent."""
        self.coordinator.request_stop()
        try:
            self.session.close()
        finally:
            self.coordinator.join(stop_grace_period_secs=_JOIN_S, ignore_live_threads=True)

    def _initialize_variables(self, scaffold: Any, restore: Callable[[Any], None] | None) -> None:
        session = self.session
        if restore is None:
            session.run(scaffold.init_op, feed_dict=scaffold.init_feed_dict)
            if scaffold.init_fn is not None:
                scaffold.init_fn(session)
        else:
            restore(session)
            self._initialize_missing(scaffold)
        session.run(scaffold.local_init_op, feed_dict=scaffold.local_init_feed_dict)

    def _initialize_missing(self, scaffold: Any) -> None:
        """Initialize the variables that were not restored."""
        names = {bytes(n).decode() for n in self.session.run(scaffold.ready_for_local_init_op)}
        if not names:
            return
        variables = [
            variable
            for variable in self.graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
            if variable.op.name in names
        ]
        self.session.run([variable.initializer for variable in variables])
        _logger.info("initialized variables that were not restored: %s", ", ".join(sorted(names)))


class HookList:
    """Calls a list of hooks around the runs of a session.

    Args:
        hooks: ``tf.compat.v1.train.SessionRunHook`` objects, called in this order.

    Attributes:
        should_stop: Whether a hook has called ``run_context.request_stop()``. May be reset.
    """

    def __init__(self, hooks: Iterable[Any]) -> None:
        self.hooks = tuple(hooks)
        self.should_stop = False
        if self.hooks:
            _use_hook_classes_once()
        self._opened: Any = None

    def begin(self, graph: Any) -> None:
        """Notify the hooks before the session is created. They may add to the graph."""
        self.should_stop = False
        with graph.as_default():
            for hook in self.hooks:
                hook.begin()

    def after_create_session(self, opened: OpenSession) -> None:
        """Notify the hooks of a new session."""
        self._opened = opened
        with opened.graph.as_default():
            for hook in self.hooks:
                hook.after_create_session(opened.session, opened.coordinator)

    def make_step(self, fetches: Any) -> Callable[[], Any]:
        """Return the fastest function that runs fetches with all necessary hooks."""
        if any(map(_is_called_per_step, self.hooks)):
            return functools.partial(self.run, fetches)
        function: Callable[[], Any] = self._opened.session.make_callable(fetches)
        return function

    def run(self, fetches: Any) -> Any:
        """Run fetches and the hooks' requests in one call of the session.

        Raises:
            RuntimeError: If two hooks feed the same tensor.
        """
        session = self._opened.session
        requested = {_OF_CALLER: fetches}
        feeds: dict[Any, Any] = {}
        options, metadata = tf1.RunOptions(), tf1.RunMetadata()
        with self._opened.graph.as_default():
            context = tf1.train.SessionRunContext(
                original_args=tf1.train.SessionRunArgs(fetches), session=session
            )
            for index, hook in enumerate(self.hooks):
                request = hook.before_run(context)
                if request is None:
                    continue
                if request.fetches is not None:
                    requested[index] = request.fetches
                if request.feed_dict:
                    _merge_feeds(feeds, request.feed_dict, hook)
                if request.options is not None:
                    options.MergeFrom(request.options)
            values = session.run(requested, feeds, options=options, run_metadata=metadata)
            for index, hook in enumerate(self.hooks):
                results = tf1.train.SessionRunValues(
                    results=values.get(index), options=options, run_metadata=metadata
                )
                hook.after_run(context, results)
        self.should_stop = self.should_stop or context.stop_requested
        return values[_OF_CALLER]

    def end(self) -> None:
        """Notify the hooks that the loop ended without an error. Call it once."""
        with self._opened.graph.as_default():
            for hook in self.hooks:
                hook.end(self._opened.session)


class HookedSession(HookList):
    """A session and its hooks, from ``begin`` to ``end``.

    Args:
        graph: A graph that is complete except for additions of hooks and scaffold. It becomes
            finalized.
        scaffold: ``tf.compat.v1.train.Scaffold``.
        hooks: ``SessionRunHook`` objects.
        config: ``ConfigProto``; None = TensorFlow's default.
        restore: See `OpenSession`.
        complete: Called after the hooks' ``begin``, as the last code that may add to the graph.
    """

    def __init__(
        self,
        graph: Any,
        *,
        scaffold: Any,
        hooks: Iterable[Any] = (),
        config: Any = None,
        restore: Callable[[Any], None] | None = None,
        complete: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(hooks)
        self.begin(graph)
        with graph.as_default():
            if complete is not None:
                complete()
            scaffold.finalize()
        opened = OpenSession(graph, scaffold=scaffold, config=config, restore=restore)
        try:
            self.after_create_session(opened)
        except BaseException:
            opened.close()
            raise

    @property
    def session(self) -> Any:
        """The ``tf.compat.v1.Session``. Its ``run`` bypasses the hooks."""
        return self._opened.session

    def close(self) -> None:
        """Close the session; idempotent."""
        self._opened.close()


def _use_hook_classes_once() -> None:
    with quiet_deprecations():
        arguments = tf1.train.SessionRunArgs(None)
        tf1.train.SessionRunContext(original_args=arguments, session=None)
        tf1.train.SessionRunValues(results=None, options=None, run_metadata=None)


def _is_called_per_step(hook: Any) -> bool:
    """Whether a hook overrides ``before_run`` or ``after_run``."""
    base = tf1.train.SessionRunHook
    return any(
        getattr(getattr(hook, name), "__func__", None) is not getattr(base, name)
        for name in ("before_run", "after_run")
    )


def _merge_feeds(feeds: dict[Any, Any], more: Mapping[Any, Any], hook: Any) -> None:
    identities = set(map(id, feeds))
    for tensor, value in more.items():
        if id(tensor) in identities:
            raise RuntimeError(
                f"the hook {type(hook).__name__} feeds {tensor!r}, but another hook already feeds "
                "it in the same step"
            )
        feeds[tensor] = value
