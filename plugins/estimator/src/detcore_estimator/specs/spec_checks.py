"""Check the parts of an ``EstimatorSpec``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detcore.errors import InvalidModelError
from detcore_estimator.specs.argument_checks import wrong_type
from detcore_estimator.specs.serving_signatures import PredictOutput
from detcore_estimator.tensorflow_versions import tf, tf1

_DEFAULT_SIGNATURE = "serving_default"


def checked_train_op(train_op: Any, *, is_needed: bool) -> Any:
    """Return the training operation."""
    if train_op is None:
        _refuse_missing("train_op", is_needed, "optimizer.minimize(loss, global_step)")
        return None
    if not isinstance(train_op, (tf.Operation, tf.Tensor, tf.Variable)):
        raise wrong_type("train_op", train_op, "an operation or a tensor")
    if isinstance(train_op, tf.Variable):
        # The result of assign_add and similar; fetching it would not run the assignment.
        train_op = train_op.op
    check_default_graph("train_op", train_op)
    return train_op


def checked_loss(loss: Any, *, is_needed: bool) -> Any:
    """Return the loss as a scalar."""
    if loss is None:
        _refuse_missing("loss", is_needed, "the mean of the batch's losses")
        return None
    _check_tensor("loss", loss, "a tensor")
    if loss.shape.num_elements() not in (None, 1):
        raise InvalidModelError(
            f"the loss has the shape {loss.shape}, but it must be one number: {loss}.\n"
            "Reduce it to a scalar, for example with tf.reduce_mean."
        )
    return loss if loss.shape.is_compatible_with([]) else tf.reshape(loss, [])


def checked_predictions(predictions: Any, *, is_needed: bool) -> Any:
    """Return the predictions, with an empty dict instead of None."""
    if predictions is None:
        _refuse_missing("predictions", is_needed, "a tensor or a dict of tensors")
        return {}
    if not isinstance(predictions, Mapping):
        _check_tensor("predictions", predictions, "a tensor or a dict of tensors")
        return predictions
    for key, value in predictions.items():
        _check_tensor(f"predictions[{key!r}]", value, "a tensor")
    return dict(predictions)


def checked_export_outputs(outputs: Any, predictions: Any) -> dict[str, Any]:
    """Return the outputs of each serving signature, including a default signature."""
    if outputs is None:
        return {_DEFAULT_SIGNATURE: PredictOutput(predictions)}
    if not isinstance(outputs, Mapping):
        raise wrong_type("export_outputs", outputs, "a dict")
    for key, output in outputs.items():
        if not callable(getattr(output, "as_signature_def", None)):
            raise wrong_type(
                f"export_outputs[{key!r}]",
                output,
                "a PredictOutput, ClassificationOutput or RegressionOutput",
            )
    outputs_by_name: dict[str, Any] = dict(outputs)
    if len(outputs_by_name) == 1:
        outputs_by_name.setdefault(_DEFAULT_SIGNATURE, next(iter(outputs_by_name.values())))
    if outputs_by_name and _DEFAULT_SIGNATURE not in outputs_by_name:
        raise InvalidModelError(
            f"export_outputs has the signatures {', '.join(map(repr, outputs))}, but no default "
            "signature.\n"
            f"Name one signature {_DEFAULT_SIGNATURE!r}. It serves requests without a signature "
            "name."
        )
    return outputs_by_name


def checked_scaffold(scaffold: Any) -> Any:
    """Return the scaffold, with a default scaffold instead of None."""
    if scaffold is None:
        return tf1.train.Scaffold()
    if not isinstance(scaffold, tf1.train.Scaffold):
        raise wrong_type("scaffold", scaffold, "a tf.compat.v1.train.Scaffold")
    return scaffold


def checked_metrics(metrics: Any) -> dict[str, tuple[Any, Any]]:
    """Return the metrics as pairs of value and update operation."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise wrong_type("eval_metric_ops", metrics, "a dict")
    return {name: _checked_metric(name, metric) for name, metric in metrics.items()}


def _checked_metric(name: str, metric: Any) -> tuple[Any, Any]:
    place = f"eval_metric_ops[{name!r}]"
    if callable(getattr(metric, "update_state", None)) and hasattr(metric, "result"):
        metric = _of_keras_metric(place, metric)
    if not isinstance(metric, tuple) or len(metric) != 2:
        raise wrong_type(place, metric, "a tuple (value, update_op)")
    for part in tf.nest.flatten(metric):
        if not isinstance(part, (tf.Operation, tf.Tensor, tf.Variable)):
            raise wrong_type(place, part, "made of tensors and operations")
        check_default_graph(place, part)
    return metric


def _of_keras_metric(place: str, metric: Any) -> tuple[Any, Any]:
    updates = getattr(metric, "updates", None)
    if not isinstance(updates, (list, tuple)):
        raise InvalidModelError(
            f"{place} is the metric {metric.name!r} of Keras 3, which cannot be part of a "
            "TensorFlow 1 graph.\n"
            "Use a function of tf.compat.v1.metrics, which returns (value, update_op)."
        )
    if not updates:
        raise InvalidModelError(
            f"{place} is the metric {metric.name!r}, which has nothing to compute.\n"
            "Call its update_state(labels, predictions) in model_fn first."
        )
    # Keras adds its variables to no collection. A metric's variables must be initialized as local
    # variables.
    for key in (tf1.GraphKeys.LOCAL_VARIABLES, tf1.GraphKeys.METRIC_VARIABLES):
        known_ids = {id(variable) for variable in tf1.get_collection(key)}
        for variable in metric.variables:
            if id(variable) not in known_ids:
                tf1.add_to_collection(key, variable)
    return metric.result(), tf.group(*updates)


def _check_tensor(place: str, value: Any, expected: str) -> None:
    if not isinstance(value, (tf.Tensor, tf.Variable)):
        raise wrong_type(place, value, expected)
    check_default_graph(place, value)


def check_default_graph(place: str, value: Any) -> None:
    """Check that a tensor, variable or operation belongs to the graph that is being built."""
    # Eager tensors do not belong to a graph.
    if not tf.executing_eagerly() and value.graph is not tf1.get_default_graph():
        raise InvalidModelError(
            f"{place} is {value.name!r}, which is not part of the graph that is being built.\n"
            "It was created outside of model_fn and input_fn, or in an earlier call.\n"
            "Build everything in the EstimatorSpec inside model_fn."
        )


def _refuse_missing(name: str, is_needed: bool, example: str) -> None:
    if is_needed:
        raise InvalidModelError(
            f"the EstimatorSpec has no {name}, which this mode requires: pass {name}=... "
            f"({example})"
        )
