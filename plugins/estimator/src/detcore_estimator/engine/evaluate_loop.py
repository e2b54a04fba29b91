"""Implement ``Estimator.evaluate``."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from detcore.errors import DataError, InvalidModelError
from detcore_estimator.engine.event_files import EventFile, result_summary
from detcore_estimator.engine.input_pipeline import Model, build_model
from detcore_estimator.engine.model_dir import make_restorer
from detcore_estimator.graph.hooked_session import HookedSession
from detcore_estimator.graph.model_fn import model_graph
from detcore_estimator.graph.scaffolds import with_local_variables
from detcore_estimator.specs.estimator_spec import ModeKeys
from detcore_estimator.tensorflow_versions import tf, tf1

_logger = logging.getLogger("detcore.estimator")

_LOSS = "loss"
_STEP = tf1.GraphKeys.GLOBAL_STEP


def evaluate_model(
    estimator: Model,
    input_fn: Callable[..., Any],
    *,
    steps: int | None,
    hooks: Sequence[Any],
    checkpoint: str | None,
    eval_dir: str,
) -> dict[str, Any]:
    """Evaluate a model with the values of a checkpoint.

    Args:
        estimator: The estimator.
        input_fn: Returns the data.
        steps: Maximum number of batches; None = all data.
        hooks: ``SessionRunHook`` objects.
        checkpoint: The checkpoint; None = fresh variables.
        eval_dir: Directory of the event file.

    Returns:
        The metrics by name, ``loss`` (the mean over the batches) and ``global_step``.
    """
    config = estimator.config
    with model_graph(config) as graph:
        inputs, spec = build_model(
            estimator, input_fn, ModeKeys.EVAL, config=config, checkpoint=checkpoint
        )
        if steps is None and not inputs.has_end:
            _logger.warning(
                "input_fn returns plain tensors, which never end, and steps is not set. The "
                "evaluation ends only when a hook requests it"
            )
        update, values = _list_metrics(spec)
        all_hooks = (*inputs.hooks, *hooks, *spec.evaluation_hooks)
        scaffold = with_local_variables(spec.scaffold)
    events = EventFile(eval_dir)
    with graph.as_default(), contextlib.closing(events):
        hooked = HookedSession(
            graph,
            scaffold=scaffold,
            hooks=all_hooks,
            config=config.session_config,
            restore=make_restorer(scaffold, checkpoint),
        )
        with contextlib.closing(hooked):
            _run_steps(hooked, update, steps)
            hooked.end()
            results: dict[str, Any] = hooked.session.run(values)
        _write_results(events, results, checkpoint)
    listed = ", ".join(f"{name} = {value}" for name, value in sorted(results.items()))
    _logger.info("evaluated at global step %d: %s", int(results[_STEP]), listed)
    return results


def _write_results(events: EventFile, results: dict[str, Any], checkpoint: str | None) -> None:
    summary = result_summary({name: value for name, value in results.items() if name != _STEP})
    if checkpoint is not None:
        path = tf.make_tensor_proto(checkpoint, dtype=tf.string)
        summary.value.add(tag="checkpoint_path", tensor=path)
    events.write_summary(int(results[_STEP]), summary)


def _list_metrics(spec: Any) -> tuple[Any, dict[str, Any]]:
    """Return the operation that adds a batch to all metrics, and the metrics' values."""
    metrics = dict(spec.eval_metric_ops or {})
    for name in (_LOSS, _STEP):
        if name in metrics:
            raise InvalidModelError(
                f"eval_metric_ops has a metric {name!r}, but this name is reserved.\n"
                "Give the metric another name."
            )
    metrics[_LOSS] = tf1.metrics.mean(spec.loss)
    # Sorted, so that each process builds the same graph.
    pairs = sorted(metrics.items())
    update = tf.group(*(operation for _, (_, operation) in pairs))
    values = {name: value for name, (value, _) in pairs}
    values[_STEP] = tf1.train.get_global_step()
    return update, values


def _run_steps(hooked: HookedSession, update: Any, steps: int | None) -> None:
    run = hooked.make_step(update)
    num_batches = 0
    try:
        while (steps is None or num_batches < steps) and not hooked.should_stop:
            run()
            num_batches += 1
    except (tf.errors.OutOfRangeError, StopIteration):
        _logger.info("the evaluation data ended after %d batches", num_batches)
    if num_batches == 0:
        raise DataError(
            "there is nothing to evaluate: input_fn returned no batch.\n"
            "Without data, metrics are undefined, but TensorFlow would report 0.\n"
            "Check the data that input_fn reads, and drop_remainder if the data has few records."
        )
