"""Run sessions through ``SessionRunHook`` objects."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from detcore_estimator._tf import quiet_deprecations, tf1

_logger = logging.getLogger("detcore.estimator")

# More distinct fetches than this, and a hook makes new tensors at each step: nothing to gain.
_MOST_CALLABLES = 64
_JOIN_S = 120
_NODE = re.compile(r"\{\{node ([^\s}]+)\}\}")


class OpenSession:
    """A session of one graph with its variables in place, and the threads of its queues.

    Args:
        graph: The graph; it may still grow.
        scaffold: Its ``tf.compat.v1.train.Scaffold``, finalized.
        config: ``ConfigProto`` of the session; None = TensorFlow's default.
        restore: Puts values into the variables instead of the scaffold's ``init_op``; variables
            that it leaves without a value are initialized.
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
            self._initialize(scaffold, restore)
            with graph.as_default():
                if graph.get_collection(tf1.GraphKeys.QUEUE_RUNNERS):
                    tf1.train.start_queue_runners(self.session, self.coordinator)
            stack.pop_all()

    def close(self) -> None:
        """Stop the threads and close the session; may be called again."""
        self.coordinator.request_stop()
        try:
            self.session.close()
        finally:
            self.coordinator.join(stop_grace_period_secs=_JOIN_S, ignore_live_threads=True)

    def _initialize(self, scaffold: Any, restore: Callable[[Any], None] | None) -> None:
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
        should_stop: Whether a hook has called ``run_context.request_stop()``; may be set back.
    """

    def __init__(self, hooks: Iterable[Any]) -> None:
        self.hooks = tuple(hooks)
        self.should_stop = False
        if self.hooks:
            _use_hook_classes_once()
        self._callables: dict[Any, tuple[Any, Callable[[], Any]]] = {}
        self._session: Any = None

    def begin(self, graph: Any) -> None:
        """Notify the hooks before the session is created; they may add to the graph."""
        self.should_stop = False
        with graph.as_default():
            for hook in self.hooks:
                hook.begin()

    def after_create_session(self, opened: OpenSession) -> None:
        """Notify the hooks of a new session."""
        if self._session is not opened.session:
            self._session = opened.session
            self._callables.clear()
        with opened.graph.as_default():
            for hook in self.hooks:
                hook.after_create_session(opened.session, opened.coordinator)

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Run fetches, and the additions of the hooks, in one call of the session.

        Raises:
            RuntimeError: If two hooks, or a hook and the caller, feed the same tensor.
        """
        if not self.hooks:
            return self._call((fetches,), (), feed_dict, None)[0][0]
        with self._session.graph.as_default():
            return self._run_with_hooks(fetches, feed_dict)

    def _run_with_hooks(self, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
        context = tf1.train.SessionRunContext(
            original_args=tf1.train.SessionRunArgs(fetches, feed_dict), session=self._session
        )
        asked: list[int] = []
        extra: list[Any] = []
        feeds = dict(feed_dict) if feed_dict else None
        options = None
        for index, hook in enumerate(self.hooks):
            request = hook.before_run(context)
            if request is None:
                continue
            if request.fetches is not None:
                asked.append(index)
                extra.append(request.fetches)
            if request.feed_dict:
                feeds = _merged_feeds(feeds, request.feed_dict, hook)
            if request.options is not None:
                options = _merged_options(options, request.options)
        values, metadata = self._call((fetches, *extra), tuple(asked), feeds, options)
        results = dict(zip(asked, values[1:], strict=True))
        for index, hook in enumerate(self.hooks):
            hook.after_run(
                context,
                tf1.train.SessionRunValues(
                    results=results.get(index), options=options, run_metadata=metadata
                ),
            )
        self.should_stop = self.should_stop or context.stop_requested
        return values[0]

    def end(self, opened: OpenSession) -> None:
        """Notify the hooks that the loop ended without an error."""
        with opened.graph.as_default():
            for hook in self.hooks:
                hook.end(opened.session)

    def _call(
        self,
        fetches: tuple[Any, ...],
        asked: tuple[int, ...],
        feeds: Mapping[Any, Any] | None,
        options: Any,
    ) -> tuple[Any, Any]:
        metadata = tf1.RunMetadata()
        if feeds or options is not None:
            values = self._session.run(
                fetches, feed_dict=feeds, options=options, run_metadata=metadata
            )
            return values, metadata
        key = (asked, *map(_identity, fetches))
        known = self._callables.get(key)
        if known is None and len(self._callables) >= _MOST_CALLABLES:
            return self._session.run(fetches), metadata
        if known is None:
            # The fetches are kept: their identities are the key.
            known = self._callables[key] = (fetches, self._session.make_callable(fetches))
        try:
            return known[1](), metadata
        except tf1.errors.OutOfRangeError:  # the end of the data
            raise
        except tf1.errors.OpError as error:
            # With the operation, the text of the error has the lines that defined it. Session.run
            # gives it one; a callable does not. It may be in a function, such as a dataset's.
            for name in _NODE.findall(error.message):
                with contextlib.suppress(KeyError, ValueError):
                    operation = self._session.graph.get_operation_by_name(name)
                    raise type(error)(operation.node_def, operation, error.message) from None
            raise


class HookedSession:
    """A session and its hooks, from ``begin`` to ``end``.

    Args:
        graph: A graph that is complete but for what hooks and the scaffold add; it is finalized.
        scaffold: ``tf.compat.v1.train.Scaffold``; None = a default one.
        hooks: ``SessionRunHook`` objects.
        config: ``ConfigProto``; None = TensorFlow's default.
        restore: See `OpenSession`.
        complete: Called when the hooks have begun; the last that may add to the graph.
    """

    def __init__(
        self,
        graph: Any,
        *,
        scaffold: Any = None,
        hooks: Iterable[Any] = (),
        config: Any = None,
        restore: Callable[[Any], None] | None = None,
        complete: Callable[[], None] | None = None,
    ) -> None:
        self._hooks = HookList(hooks)
        self._hooks.begin(graph)
        with graph.as_default():
            if complete is not None:
                complete()
            self.scaffold = (scaffold or tf1.train.Scaffold()).finalize()
        self._opened = OpenSession(graph, scaffold=self.scaffold, config=config, restore=restore)
        try:
            self._hooks.after_create_session(self._opened)
        except BaseException:
            self._opened.close()
            raise

    @property
    def session(self) -> Any:
        """The ``tf.compat.v1.Session``; its own ``run`` passes the hooks by."""
        return self._opened.session

    @property
    def has_hooks(self) -> bool:
        """Whether any hook is called."""
        return bool(self._hooks.hooks)

    @property
    def should_stop(self) -> bool:
        """Whether a hook has asked to stop."""
        return self._hooks.should_stop

    def clear_stop(self) -> None:
        """Forget that a hook has asked to stop."""
        self._hooks.should_stop = False

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Run fetches through the hooks."""
        return self._hooks.run(fetches, feed_dict)

    def end(self) -> None:
        """Notify the hooks that the loop ended without an error; call it once."""
        self._hooks.end(self._opened)

    def close(self) -> None:
        """Close the session; may be called again."""
        self._opened.close()

    def __enter__(self) -> HookedSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _use_hook_classes_once() -> None:
    with quiet_deprecations():
        arguments = tf1.train.SessionRunArgs(None)
        tf1.train.SessionRunContext(original_args=arguments, session=None)
        tf1.train.SessionRunValues(results=None, options=None, run_metadata=None)


def _identity(fetches: Any) -> Any:
    """Return a key that identifies a structure of fetches, without comparing tensors."""
    if isinstance(fetches, Mapping):
        return (type(fetches), *((key, _identity(value)) for key, value in fetches.items()))
    if isinstance(fetches, str):
        return fetches
    if isinstance(fetches, Sequence):
        return (type(fetches), *map(_identity, fetches))
    return id(fetches)


def _merged_feeds(feeds: dict[Any, Any] | None, more: Mapping[Any, Any], hook: Any) -> Any:
    merged = dict(feeds or {})
    known = {id(tensor): tensor for tensor in merged}
    for tensor, value in more.items():
        if id(tensor) in known:
            raise RuntimeError(
                f"the hook {type(hook).__name__} feeds {tensor!r}, which another hook or the "
                "caller feeds already in the same step"
            )
        merged[tensor] = value
    return merged


def _merged_options(options: Any, more: Any) -> Any:
    """Combine what several hooks ask of one run: the widest trace, the longest timeout."""
    merged = tf1.RunOptions()
    merged.CopyFrom(more)
    if options is not None:
        merged.trace_level = max(options.trace_level, more.trace_level)
        merged.timeout_in_ms = max(options.timeout_in_ms, more.timeout_in_ms)
        merged.inter_op_thread_pool = max(options.inter_op_thread_pool, more.inter_op_thread_pool)
        merged.output_partition_graphs |= options.output_partition_graphs
        merged.report_tensor_allocations_upon_oom |= options.report_tensor_allocations_upon_oom
        merged.debug_options.MergeFrom(options.debug_options)
    return merged
