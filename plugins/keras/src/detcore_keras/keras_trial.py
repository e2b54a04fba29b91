"""Define `KerasTrial`, the base class of Keras trials."""

from __future__ import annotations

import abc
from typing import Any

from detcore import Trial
from detcore_keras.keras_context import TFKerasTrialContext


class KerasTrial(Trial, abc.ABC):
    """A Keras model, its data and its callbacks, on any back end of Keras 3 or on Keras 2.

    detcore calls the methods once per worker process, in this order: `build_training_data_loader`,
    `build_validation_data_loader`, `build_model`, `keras_callbacks`. Training then runs inside one
    ``model.fit``, with metrics, validation and checkpoints according to the experiment file.

    Example::

        class Digits(KerasTrial):
            def __init__(self, context):
                self.context = context

            def build_model(self):
                model = keras.Sequential([keras.layers.Dense(10)])
                model = self.context.wrap_model(model)
                model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
                return model

            def build_training_data_loader(self):
                return x_train, y_train

            def build_validation_data_loader(self):
                return x_test, y_test

    Attributes:
        trial_context_class: The class of the trial's context.
    """

    trial_context_class = TFKerasTrialContext
    context: TFKerasTrialContext

    def __init__(self, context: TFKerasTrialContext) -> None:
        """Store the context. Subclasses that override this should store it as ``self.context``.

        Args:
            context: Hyperparameters, ranks, paths, and methods to wrap models and data.
        """
        super().__init__(context)

    @abc.abstractmethod
    def build_model(self) -> Any:
        """Build the model: wrap it with ``self.context.wrap_model``, then compile it.

        Returns:
            The wrapped and compiled Keras model. For compatibility, None stands for the model that
            was wrapped last.
        """

    @abc.abstractmethod
    def build_training_data_loader(self) -> Any:
        """Return the training data.

        Returns:
            A tuple ``(x, y)`` or ``(x, y, sample_weight)`` of NumPy arrays, a ``tf.data.Dataset``
            of batches that is wrapped with ``self.context.wrap_dataset``, a
            ``keras.utils.Sequence`` (``PyDataset``), a `SequenceAdapter`, or a
            `detcore.data.DataSource`. Each part of a tuple may be an array, a list or tuple of
            arrays, or a dict of arrays. Batches of arrays have
            ``self.context.get_per_slot_batch_size()`` records. The last batch of an epoch may be
            smaller.
        """

    @abc.abstractmethod
    def build_validation_data_loader(self) -> Any:
        """Return the validation data, of any kind that training data may have."""

    def session_config(self) -> Any:
        """Return a session configuration. It has no effect; TensorFlow 2 has no sessions."""
        return None

    def keras_callbacks(self) -> list[Any]:
        """Return Keras callbacks to run while training. The default is no callbacks.

        Callbacks with batch-level hooks (``on_train_batch_begin``, ``on_train_batch_end``) make
        training run one batch at a time. Without them, many batches run inside one call of
        TensorFlow's graph, which is several times faster for small models.
        """
        return []


# The name in Determined.
TFKerasTrial = KerasTrial
