"""Define the class that users of Estimators subclass."""

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
    validation and exports then share one training session, with metrics and checkpoints as the
    experiment file says.

    TensorFlow's V2 behaviour is switched off in the worker before the trial is made, as Estimators
    expect; a trial need not do it.

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
        trial_context_class: The class of the context that a trial is given.
    """

    trial_context_class = EstimatorTrialContext
    context: EstimatorTrialContext

    def __init__(self, context: EstimatorTrialContext) -> None:
        """Keep the context. Overriders should store it as ``self.context``.

        Args:
            context: Hyperparameters, ranks, paths, and the methods that wrap optimizers and data.
        """
        super().__init__(context)

    @abc.abstractmethod
    def build_estimator(self) -> Any:
        """Return the estimator to train.

        Returns:
            A ``tf.estimator.Estimator``, premade or with a custom ``model_fn``, or a
            `detcore_estimator.Estimator`. Its optimizer must have gone through
            ``self.context.wrap_optimizer``. Its ``RunConfig`` is kept, except for the settings that
            belong to the trial: the model directory and when checkpoints are saved.
        """

    @abc.abstractmethod
    def build_train_spec(self) -> Any:
        """Return the ``TrainSpec``.

        Returns:
            A ``tf.estimator.TrainSpec`` or `detcore_estimator.TrainSpec`. Its ``input_fn`` returns
            a ``tf.data.Dataset`` of batches ``(features, labels)``, wrapped with
            ``self.context.wrap_dataset``; it is repeated as long as training lasts. ``hooks`` and
            ``saving_listeners`` are called; ``max_steps`` is not used, because the length of
            training is ``searcher.max_length`` in the experiment file.
        """

    @abc.abstractmethod
    def build_validation_spec(self) -> Any:
        """Return the ``EvalSpec``.

        Returns:
            A ``tf.estimator.EvalSpec`` or `detcore_estimator.EvalSpec`. Its ``input_fn`` returns a
            ``tf.data.Dataset`` of batches, wrapped with ``self.context.wrap_dataset``. A validation
            takes ``steps`` batches, or all of them if that is None. ``hooks`` and ``exporters`` are
            called; the delays are not used, because the experiment file says when to validate.
        """

    def build_serving_input_receiver_fns(self) -> dict[str, Callable[..., Any]]:
        """Return functions that describe the inputs of exported models; default: none.

        Returns:
            A dict from a name to a serving input receiver function. For each, every checkpoint
            has a SavedModel in a folder of that name.
        """
        return {}
