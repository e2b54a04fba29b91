"""Define `EstimatorTrial`, the base class of Estimator trials."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

from detcore import Trial
from detcore_estimator.estimator_context import EstimatorTrialContext


class EstimatorTrial(Trial, abc.ABC):
    """An Estimator, its data and its hooks.

    detcore calls the methods once per worker process, in this order: `build_estimator`,
    `build_train_spec`, `build_validation_spec`, `build_serving_input_receiver_fns`. Training,
    validation and exports then share one training session, with metrics and checkpoints according
    to the experiment file.

    Estimators need TensorFlow's V1 behaviour. The worker disables V2 behaviour before it creates
    the trial, so the trial does not need to.

    Example::

        class Digits(EstimatorTrial):
            def __init__(self, context):
                self.context = context

            def build_estimator(self):
                return detcore_estimator.Estimator(self.model_fn)

            def build_train_spec(self):
                return detcore_estimator.TrainSpec(self.train_input_fn)

            def build_validation_spec(self):
                return detcore_estimator.EvalSpec(self.validation_input_fn, steps=None)

    Attributes:
        trial_context_class: The class of the trial's context.
    """

    trial_context_class = EstimatorTrialContext
    context: EstimatorTrialContext

    def __init__(self, context: EstimatorTrialContext) -> None:
        """Store the context. Subclasses that override this should store it as ``self.context``.

        Args:
            context: Hyperparameters, ranks, paths, and methods to wrap optimizers and data.
        """
        super().__init__(context)

    @abc.abstractmethod
    def build_estimator(self) -> Any:
        """Return the estimator to train.

        Returns:
            A ``tf.estimator.Estimator``, premade or with a custom ``model_fn``, or a
            `detcore_estimator.Estimator`. Its optimizer must come from
            ``self.context.wrap_optimizer``. Its ``RunConfig`` is used, except for settings that
            belong to the trial: the model directory and the checkpoint schedule.
        """

    @abc.abstractmethod
    def build_train_spec(self) -> Any:
        """Return the ``TrainSpec``.

        Returns:
            A ``tf.estimator.TrainSpec`` or `detcore_estimator.TrainSpec`. Its ``input_fn`` returns
            a ``tf.data.Dataset`` of batches ``(features, labels)``, wrapped with
            ``self.context.wrap_dataset``. The dataset is repeated until training ends. ``hooks``
            and ``saving_listeners`` are called. ``max_steps`` is ignored, because
            ``searcher.max_length`` in the experiment file sets the length of training.
        """

    @abc.abstractmethod
    def build_validation_spec(self) -> Any:
        """Return the ``EvalSpec``.

        Returns:
            A ``tf.estimator.EvalSpec`` or `detcore_estimator.EvalSpec`. Its ``input_fn`` returns a
            ``tf.data.Dataset`` of batches, wrapped with ``self.context.wrap_dataset``. A validation
            uses ``steps`` batches, or all batches if ``steps`` is None. ``hooks`` and ``exporters``
            are called. The delays are ignored, because the experiment file schedules validations.
        """

    def build_serving_input_receiver_fns(self) -> dict[str, Callable[..., Any]]:
        """Return functions that describe the inputs of exported models. The default is empty.

        Returns:
            A dict from a name to a serving input receiver function. For each function, every
            checkpoint has a SavedModel in a directory with its name.
        """
        return {}
