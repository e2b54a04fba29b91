"""Implement ``Estimator.evaluate``: a graph, a session and a loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from detcore.errors import DataError, InvalidModelError
from detcore_estimator._engine._event_files import EventFile, result_summary
from detcore_estimator._engine._hook_kinds import is_called_per_step
from detcore_estimator._engine._input_pipeline import read_inputs
from detcore_estimator._engine._model import Model
from detcore_estimator._engine._model_dir import restore
from detcore_estimator._model_fn import model_graph
from detcore_estimator._scaffolds import with_local_variables
from detcore_estimator._session import HookedSession
from detcore_estimator._spec import ModeKeys
from detcore_estimator._tf import tf, tf1

_logger = logging.getLogger("detcore.estimator")

_LOSS = "loss"
_STEP = tf1.GraphKeys.GLOBAL_STEP


def evaluate_model(
    model: Model,
    input_fn: Callable[..., Any],
    *,
    steps: int | None,
    hooks: Sequence[Any],
    checkpoint: str | None,
    eval_dir: str,
) -> dict[str, Any]:
    """Evaluate a model with the values of a checkpoint.

    Args:
        model: The model.
        input_fn: Returns the data.
        steps: Batches at most; None = until the data end.
        hooks: ``SessionRunHook`` objects.
        checkpoint: The checkpoint; None = with fresh variables.
        eval_dir: Folder of the event file.

    Returns:
        The metrics by name, ``loss`` (the mean over the batches) and ``global_step``.
    """
    with model_graph(model.config) as graph:
        inputs = read_inputs(input_fn, ModeKeys.EVAL, params=model.params, config=model.config)
        if steps is None and not inputs.has_end:
            _logger.warning(
                "input_fn returns plain tensors, which never end, and steps is not given: the "
                "evaluation ends only when a hook asks for it"
            )
        spec = model.model_fn(inputs.features, inputs.labels, ModeKeys.EVAL, model.config)
        if checkpoint is None:
            model.warm_start_variables()
        update, values = _metrics(spec)
        all_hooks = (*inputs.hooks, *hooks, *(spec.evaluation_hooks or ()))
        scaffold = with_local_variables(spec.scaffold or tf1.train.Scaffold())
    events = EventFile(eval_dir)
    with graph.as_default():
        try:
            with HookedSession(
                graph,
                scaffold=scaffold,
                hooks=all_hooks,
                config=model.config.session_config,
                restore=_restorer(scaffold, checkpoint),
            ) as hooked:
                is_hooked = any(map(is_called_per_step, all_hooks))
                _run(hooked, update, steps, is_hooked=is_hooked)
                hooked.end()
                results: dict[str, Any] = hooked.session.run(values)
            step = int(results[_STEP])
            named = {name: value for name, value in results.items() if name != _STEP}
            summary = result_summary(named)
            if checkpoint is not None:
                path = tf.make_tensor_proto(checkpoint, dtype=tf.string)
                summary.value.add(tag="checkpoint_path", tensor=path)
            events.write_summary(step, summary)
        finally:
            events.close()
    shown = ", ".join(f"{name} = {value}" for name, value in sorted(results.items()))
    _logger.info("evaluated at global step %d: %s", step, shown)
    return results


def _metrics(spec: Any) -> tuple[Any, dict[str, Any]]:
    """Return the operation that adds a batch to all metrics, and the metrics' values."""
    metrics = dict(spec.eval_metric_ops or {})
    for name in (_LOSS, _STEP):
        if name in metrics:
            raise InvalidModelError(
                f"eval_metric_ops has a metric {name!r}, a name that every evaluation uses itself."
                "\nGive the metric another name."
            )
    metrics[_LOSS] = tf1.metrics.mean(spec.loss)
    # Sorted, so that each process builds the same graph.
    pairs = sorted(metrics.items())
    update = tf.group(*(operation for _, (_, operation) in pairs))
    values = {name: value for name, (value, _) in pairs}
    values[_STEP] = tf1.train.get_global_step()
    return update, values


def _restorer(scaffold: Any, checkpoint: str | None) -> Callable[[Any], None] | None:
    if checkpoint is None:
        return None
    return lambda session: restore(scaffold.saver, session, checkpoint)


def _run(hooked: HookedSession, update: Any, steps: int | None, *, is_hooked: bool) -> None:
    if is_hooked:
        run: Callable[[], Any] = lambda: hooked.run(update)  # noqa: E731
    else:
        run = hooked.session.make_callable(update)
    done = 0
    try:
        while (steps is None or done < steps) and not hooked.should_stop:
            run()
            done += 1
    except (tf.errors.OutOfRangeError, StopIteration):
        _logger.info("the evaluation data ended after %d batches", done)
    if done == 0:
        raise DataError(
            "there is nothing to evaluate: input_fn gave no batch.\n"
            "The metrics of no data are no numbers, and TensorFlow would report them as 0.\n"
            "Look at the data that input_fn reads, and at drop_remainder with few records."
        )
