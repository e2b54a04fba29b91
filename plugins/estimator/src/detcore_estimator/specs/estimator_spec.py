"""Define and check the result of a model function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from detcore.errors import InvalidModelError, describe
from detcore_estimator.specs.argument_checks import checked_hooks
from detcore_estimator.specs.spec_checks import (
    check_default_graph,
    checked_export_outputs,
    checked_loss,
    checked_metrics,
    checked_predictions,
    checked_scaffold,
    checked_train_op,
)
from detcore_estimator.tensorflow_versions import tf


class ModeKeys:
    """The purpose of a model function's call, with the values of ``tf.estimator.ModeKeys``.

    Attributes:
        TRAIN: A training step.
        EVAL: An evaluation.
        PREDICT: Predictions only; ``labels`` is None.
    """

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


_MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)


class _Fields(NamedTuple):
    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Any = None
    export_outputs: Any = None
    training_chief_hooks: Any = None
    training_hooks: Any = None
    scaffold: Any = None
    evaluation_hooks: Any = None
    prediction_hooks: Any = None


class EstimatorSpec(_Fields):
    """The operations of a model for one mode, as a model function returns them.

    Fields and rules are the same as for ``tf.estimator.EstimatorSpec``. A spec is immutable.
    ``_replace`` returns a changed copy, which is checked again.

    Args:
        mode: One of `ModeKeys`.
        predictions: Tensor, or dict of tensors; required for PREDICT.
        loss: Tensor with one element; required for TRAIN and EVAL. It becomes a scalar.
        train_op: Operation or tensor that runs one training step and increments the global step;
            required for TRAIN.
        eval_metric_ops: Dict from a metric's name to ``(value, update_op)``, or to a
            ``tf.keras.metrics`` object of Keras 2 whose ``update_state`` was called.
        export_outputs: Dict from a signature's name to a `PredictOutput`, `ClassificationOutput`
            or `RegressionOutput`. Of several outputs, one must have the name
            ``"serving_default"``. None = a `PredictOutput` of the predictions.
        training_chief_hooks: ``SessionRunHook`` objects for training, on the chief.
        training_hooks: ``SessionRunHook`` objects for training, on every worker.
        scaffold: ``tf.compat.v1.train.Scaffold`` with a custom saver or initialization.
        evaluation_hooks: ``SessionRunHook`` objects for evaluation.
        prediction_hooks: ``SessionRunHook`` objects for prediction.

    Raises:
        InvalidModelError: If a field that the mode requires is missing, or a value has the wrong
            type or comes from another graph. It is a ``ValueError`` and a ``TypeError``.
    """

    __slots__ = ()

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, Any] | None = None,
        export_outputs: Mapping[str, Any] | None = None,
        training_chief_hooks: Iterable[Any] | None = None,
        training_hooks: Iterable[Any] | None = None,
        scaffold: Any = None,
        evaluation_hooks: Iterable[Any] | None = None,
        prediction_hooks: Iterable[Any] | None = None,
    ) -> EstimatorSpec:
        """Check the fields, and create the spec."""
        if mode not in _MODES:
            raise InvalidModelError(
                f"EstimatorSpec has mode={mode!r}.\n"
                "Pass the mode that model_fn was called with, one of ModeKeys.TRAIN "
                f"({ModeKeys.TRAIN!r}), EVAL ({ModeKeys.EVAL!r}) and PREDICT "
                f"({ModeKeys.PREDICT!r})."
            )
        is_training, is_predicting = mode == ModeKeys.TRAIN, mode == ModeKeys.PREDICT
        predictions = checked_predictions(predictions, is_needed=is_predicting)
        if is_predicting:
            export_outputs = checked_export_outputs(export_outputs, predictions)
        return super().__new__(
            cls,
            mode=mode,
            predictions=predictions,
            loss=checked_loss(loss, is_needed=not is_predicting),
            train_op=checked_train_op(train_op, is_needed=is_training),
            eval_metric_ops=checked_metrics(eval_metric_ops),
            export_outputs=export_outputs,
            training_chief_hooks=checked_hooks(training_chief_hooks, "training_chief_hooks"),
            training_hooks=checked_hooks(training_hooks, "training_hooks"),
            scaffold=checked_scaffold(scaffold),
            evaluation_hooks=checked_hooks(evaluation_hooks, "evaluation_hooks"),
            prediction_hooks=checked_hooks(prediction_hooks, "prediction_hooks"),
        )

    def _replace(self, **changes: Any) -> EstimatorSpec:
        """Return a spec with some fields changed, and check all fields again.

        Raises:
            InvalidModelError: If a change breaks a rule.
        """
        return EstimatorSpec(**{**self._asdict(), **changes})


_NEEDED = {
    ModeKeys.TRAIN: ("loss", "train_op"),
    ModeKeys.EVAL: ("loss",),
    ModeKeys.PREDICT: ("predictions",),
}


def check_model_fn_spec(spec: Any, mode: str) -> None:
    """Check the result of a model function. The model's graph must be the default graph.

    Args:
        spec: The return value, an `EstimatorSpec` of detcore or ``tf.estimator``.
        mode: The mode that the function was called with.

    Raises:
        InvalidModelError: If the result has another type, lacks a field that the mode requires, or
            was built in another graph.
    """
    if not all(hasattr(spec, field) for field in _Fields._fields):
        hint = (
            "TPUEstimatorSpec is for TPUEstimator. Return its as_estimator_spec() instead."
            if hasattr(spec, "as_estimator_spec")
            else "Return detcore_estimator.EstimatorSpec(mode=mode, loss=..., ...)."
        )
        raise InvalidModelError(
            f"model_fn returned {describe(spec)}, for mode {mode!r}.\n"
            f"A model function returns an EstimatorSpec. {hint}"
        )
    for field in _NEEDED[mode]:
        value = getattr(spec, field)
        if value is None or (field == "predictions" and value == {}):
            raise InvalidModelError(
                f"model_fn was called with mode {mode!r} and returned an EstimatorSpec for mode "
                f"{spec.mode!r} without {field}.\n"
                "Pass the mode to the spec: EstimatorSpec(mode=mode, ...)."
            )
        for part in tf.nest.flatten(value):
            check_default_graph(f"the {field} that model_fn returned", part)
