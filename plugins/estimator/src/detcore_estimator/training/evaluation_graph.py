"""Validate with a graph and a session that are built once."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from detcore.errors import DataError
from detcore_estimator.data.graph_feed import check_dataset
from detcore_estimator.data.record_ids import count_records
from detcore_estimator.distributed.metric_sums import MetricSums, mean_loss
from detcore_estimator.graph.hooked_session import HookList, OpenSession
from detcore_estimator.graph.model_fn import call_input_fn, model_graph
from detcore_estimator.graph.random_ops import make_random_ops_resumable
from detcore_estimator.graph.scaffolds import own_saver, scaffold_with_saver, with_local_variables
from detcore_estimator.graph.variable_transfer import VariableTransfer
from detcore_estimator.specs.estimator_spec import ModeKeys, check_model_fn_spec
from detcore_estimator.tensorflow_versions import tf, tf1

if TYPE_CHECKING:
    from detcore_estimator.estimator_context import EstimatorContext
    from detcore_estimator.training.training_graph import TrainingSession


_logger = logging.getLogger("detcore.estimator")

# Elements of larger arrays are not reported as metrics.
_MAX_ELEMENTS = 100


class Evaluation:
    """Evaluates the model with the current values of the training session.

    Hooks are called for each validation from ``begin`` to ``end``. If a hook adds operations to the
    graph in ``begin``, each validation builds a new graph and session, so that the graph does not
    grow.

    Args:
        estimator: The user's estimator.
        eval_spec: The user's ``EvalSpec``.
        config: The run configuration.
        context: The trial's context.
    """

    def __init__(
        self, estimator: Any, eval_spec: Any, *, config: Any, context: EstimatorContext
    ) -> None:
        self._eval_spec = eval_spec
        self._context = context
        self._make_graph = functools.partial(
            _EvaluationGraph, estimator, eval_spec.input_fn, config=config, context=context
        )
        self._steps = 1 if context.test_mode else eval_spec.steps
        self._graph: _EvaluationGraph | None = None

    def prepare(self, training: TrainingSession) -> None:
        """Build the graph, so that its errors are found before the first step."""
        if self._graph is None:
            self._build_graph(training)

    def run(self, training: TrainingSession) -> tuple[dict[str, Any], int]:
        """Evaluate this worker's part of the data, and return the result over all workers.

        The result is the value of each metric, including ``loss`` and ``global_step``, and the
        number of records.

        Workers exchange results only after their last batch. A hook's stop request ends the
        evaluation after the batch, as in TensorFlow, and requests the end of the trial.

        Raises:
            DataError: If no worker had a batch.
        """
        graph = self._graph or self._build_graph(training)
        hooks = HookList([*(self._eval_spec.hooks or ()), *graph.spec.evaluation_hooks])
        size = graph.graph.version
        self._context.reducers.begin_evaluation()
        try:
            hooks.begin(graph.graph)
            grows = graph.graph.version != size
            result = graph.evaluate(training, hooks, self._steps)
        except BaseException:
            self.close()
            cause = self._context.reducers.take_error()
            if cause is not None:
                raise cause from None  # TensorFlow's error has pages of text
            raise
        if hooks.should_stop:
            self._context.set_stop_requested(True)
        if grows:
            _logger.info(
                "an evaluation hook adds to the graph, so each validation builds a new graph"
            )
            self.close()
        return result

    def close(self) -> None:
        """Close the session, if it exists."""
        graph, self._graph = self._graph, None
        if graph is not None:
            graph.close()

    def _build_graph(self, training: TrainingSession) -> _EvaluationGraph:
        self._graph = self._make_graph(training=training)
        return self._graph


class _EvaluationGraph:
    """An evaluation graph and, after the first evaluation, its session."""

    def __init__(
        self,
        estimator: Any,
        input_fn: Callable[..., Any],
        *,
        config: Any,
        context: EstimatorContext,
        training: TrainingSession,
    ) -> None:
        self._session_config = context.session_config
        self._opened: OpenSession | None = None
        with model_graph(config) as self.graph:
            global_step = tf1.train.get_global_step()
            dataset = call_input_fn(
                input_fn, mode=ModeKeys.EVAL, params=estimator.params, config=config
            )
            check_dataset(
                dataset, context.wrapped_datasets, "validation", is_managed=context.is_managed
            )
            with tf.device("/cpu:0"):
                self._num_batches = dataset.cardinality()
                iterator = tf1.data.make_initializable_iterator(dataset)
                batch = iterator.get_next()
            features, labels = batch if _is_pair(batch) else (batch, None)
            self.spec = estimator.model_fn(features, labels, ModeKeys.EVAL, config)
            check_model_fn_spec(self.spec, ModeKeys.EVAL)
            self._begin_data = iterator.initializer
            self._num_records = count_records(batch)
            self._values, updates = _metric_ops(self.spec, global_step, self._num_records)
            self._distributed = context.distributed
            self._sums = MetricSums(
                self.graph, self._values, context.reducers.value_operations(self.graph)
            )
            self._random = make_random_ops_resumable(self.graph, updates)
            if self._random is not None:
                updates = [*updates, self._random.increment]
            self._step = (self._num_records, tf.group(*updates))
            self._transfer = VariableTransfer(
                training.hooked.session.graph,
                self.graph,
                through_files=training.has_own_saver
                or own_saver(self.graph, self.spec.scaffold) is not None,
            )
            self._scaffold = with_local_variables(scaffold_with_saver(self.spec.scaffold))
            self._has_own_local_init = self._scaffold.local_init_op is not None
            self._reset_local = tf1.local_variables_initializer()

    def evaluate(
        self, training: TrainingSession, hooks: HookList, steps: int | None
    ) -> tuple[dict[str, Any], int]:
        """Copy the trained values, and evaluate."""
        opened = self._start_evaluation(training)
        if steps is None:
            _check_has_end(opened.session.run(self._num_batches))
        hooks.after_create_session(opened)
        opened.session.run(self._begin_data)
        step = hooks.make_step(self._step)
        num_batches = num_records = 0
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while (steps is None or num_batches < steps) and not hooks.should_stop:
                num_records += int(step()[0])
                num_batches += 1
        if self._distributed.get_size() > 1:
            result = self._sums.merge_workers(opened.session, num_records, self._distributed)
        elif num_batches:
            result = (opened.session.run(self._values), num_records)
        else:
            raise DataError(
                "the validation dataset has no batch.\n"
                "Check its filters. With drop_remainder=True, a batch size larger than the data "
                "also leaves no batch."
            )
        hooks.end()
        return result

    def close(self) -> None:
        """Close the session, if it exists."""
        if self._opened is not None:
            self._opened.close()

    def _start_evaluation(self, training: TrainingSession) -> OpenSession:
        """Return the session with the trained values, and with all metrics reset."""

        def copy_variables(session: Any) -> None:
            self._transfer.copy(training.session, training.saver, session, self._scaffold.saver)

        if self._opened is None:
            with self.graph.as_default():
                _finalize_scaffold(self._scaffold)
            self._opened = OpenSession(
                self.graph,
                scaffold=self._scaffold,
                config=self._session_config,
                restore=copy_variables,
            )
        else:
            copy_variables(self._opened.session)
            reset = self._scaffold.local_init_op if self._has_own_local_init else self._reset_local
            self._opened.session.run(reset)
        if self._random is not None:
            self._random.set_counter(self._opened.session, 0)
        return self._opened


def _finalize_scaffold(scaffold: Any) -> None:
    """Let a scaffold create its operations, but keep the graph open: hooks may add to it."""
    scaffold.finalize()
    # This has no public name. TensorFlow's Saver uses it for the same purpose (2.15 to 2.21).
    tf1.get_default_graph()._unsafe_unfinalize()


def _metric_ops(spec: Any, global_step: Any, num_records: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the final value of each metric, and the operations to run for each batch."""
    metrics: dict[str, Any] = dict(spec.eval_metric_ops or {})
    if "loss" not in metrics:
        metrics["loss"] = mean_loss(spec.loss, num_records)
    values: dict[str, Any] = {}
    updates: list[Any] = []
    for name, metric in metrics.items():
        if isinstance(metric, Sequence):
            values[name], update = metric
            updates.append(update)
        else:
            values[name] = metric.result()  # a Keras metric
            updates.extend(metric.updates)
    values["global_step"] = global_step
    return values, updates


def _check_has_end(num_batches: int) -> None:
    if num_batches == tf.data.INFINITE_CARDINALITY:
        raise DataError(
            "the validation dataset has no end, and EvalSpec.steps is None, so a validation would "
            "never end.\n"
            "Remove repeat() from its input_fn, or set EvalSpec.steps."
        )


def _is_pair(batch: Any) -> bool:
    return isinstance(batch, tuple) and len(batch) == 2


def scalar_metrics(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the reportable values: numbers, and the elements of small arrays.

    Args:
        values: Scalars and arrays by name. Element ``[0, 2]`` of an array ``m`` becomes ``m/0/2``.
    """
    numbers: dict[str, float] = {}
    left_out: list[str] = []
    for name, value in values.items():
        array = np.asarray(value)
        if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
            left_out.append(f"{name} ({array.dtype})")
        elif array.size > _MAX_ELEMENTS:
            left_out.append(f"{name} (shape {array.shape})")
        elif array.ndim == 0:
            numbers[name] = float(array)
        else:
            for index, element in np.ndenumerate(array):
                numbers["/".join((name, *map(str, index)))] = float(element)
    if left_out:
        _logger.warning(
            "validation metrics that cannot be reported as numbers: %s", ", ".join(left_out)
        )
    return numbers
