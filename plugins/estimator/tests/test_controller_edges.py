"""Mistakes that must not become hangs or silence."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from estimator_fakes import Classifier, FakeClock, make_context

from detcore.errors import DetcoreError
from detcore_estimator._controller import EstimatorController
from detcore_estimator._tf import tf, tf1


class _StopAfter(tf1.train.SessionRunHook):  # type: ignore[misc]  # TensorFlow has no types
    """Ends a validation that would never end."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._left -= 1
        if self._left == 0:
            run_context.request_stop()


class _EndlessValidation(Classifier):
    eval_hooks = (_StopAfter(100),)

    def validation_data(self) -> Any:
        return super().validation_data().repeat()


def test_an_endless_validation_set_without_steps_is_an_error(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    controller = EstimatorController(_EndlessValidation(context), context)
    try:
        with pytest.raises(DetcoreError, match=r"EvalSpec\.steps|repeat"):
            controller.validate()
    finally:
        controller.close()


class _DrawsInALoop(Classifier):
    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        if mode == "train":
            noise = tf1.while_loop(
                lambda index, total: index < 3,
                lambda index, total: (index + 1, total + tf.random.normal(tf.shape(features))),
                (tf.constant(0), tf.zeros_like(features)),
            )[1]
            features = features + 0.01 * noise
        return super().model_fn(features, labels, mode)


def test_random_operations_that_cannot_be_resumed_are_named_in_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = make_context(tmp_path)
    with caplog.at_level(logging.WARNING, logger="detcore"):
        controller = EstimatorController(_DrawsInALoop(context), context)
        try:
            controller.run(FakeClock(controller, until=3))
        finally:
            controller.close()
    warnings = [record for record in caplog.records if "random" in record.getMessage()]
    assert len(warnings) == 1
