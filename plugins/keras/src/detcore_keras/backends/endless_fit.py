"""Run one endless ``model.fit`` of TensorFlow with a custom train function.

Keras gets a stand-in dataset that is never read, and a train function that takes batches from a
`Feed` until the clock's next boundary. detcore can therefore save and restore the position in the
data, and choose the number of batches per call. Keras does all other work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import tensorflow as tf

from detcore_keras.backends.backend import keras_function

# Keras counts each call of the train function as one "step".
_ENDLESS = 1 << 62


def fit_until_stopped(
    model: Any, train: Callable[[], Mapping[str, float] | None], counter: Any
) -> None:
    """Run ``model.fit`` until `train` returns None.

    Args:
        model: The compiled model.
        train: Trains some batches and returns their metrics, or None to end.
        counter: Variable that counts the steps of a Keras 2 model, or None. Keras resets it when
            `fit` begins, but a restored model must continue counting.
    """
    last: Mapping[str, float] = {"loss": 0.0}
    steps_before = None if counter is None else counter.numpy()

    def train_function() -> Mapping[str, float]:
        nonlocal last, steps_before
        if counter is not None and steps_before is not None:
            counter.assign(steps_before)
            steps_before = None
        metrics = train()
        if metrics is None:
            model.stop_training = True
        else:
            last = metrics
        return last

    with replaced_function(model, "train", train_function):
        model.fit(
            stand_in(),
            epochs=1,
            steps_per_epoch=_ENDLESS,
            verbose=0,
            shuffle=False,
        )
    model.stop_training = False


@contextlib.contextmanager
def replaced_function(
    model: Any, kind: Literal["train", "test"], function: Callable[[], Mapping[str, Any]]
) -> Iterator[None]:
    """Make ``model.fit`` or ``model.evaluate`` over the stand-in data call `function`.

    Sets instance attributes, bypassing Keras's tracking. The user's class stays unchanged, and a
    saved model does not contain the replacement. Calls with other data than the stand-in, such as a
    callback's own ``model.train_on_batch``, behave as usual.
    """
    maker = f"make_{kind}_function"
    attributes = vars(model)
    instance_attributes = {name: attributes.pop(name) for name in (maker,) if name in attributes}
    replacement = _Replacement(model, kind, function)
    attributes[maker] = replacement.make_function
    try:
        yield
    finally:
        del attributes[maker]
        attributes.update(instance_attributes)
        setattr(model, f"{kind}_function", replacement.before)


class _Replacement:
    """The function that a model calls while its own function is replaced.

    This is a class because only the garbage collector frees functions that refer to each other. An
    iterator that `function` refers to would keep five TensorFlow threads until then, and the end of
    a process would wait for the threads of all validations.
    """

    def __init__(
        self, model: Any, kind: Literal["train", "test"], function: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._model = model
        self._kind: Literal["train", "test"] = kind
        self._function = function
        self.before = getattr(model, f"{kind}_function")

    def __call__(self, iterator: Any) -> Any:
        if getattr(iterator, "element_spec", None) == _STAND_IN_SPEC:
            return dict(self._function())
        setattr(self._model, f"{self._kind}_function", self.before)
        try:
            return keras_function(self._model, self._kind)(iterator)
        finally:
            self.make_function()

    def make_function(self, force: bool = False) -> Any:
        setattr(self._model, f"{self._kind}_function", self)
        return self


_STAND_IN_SPEC = tf.TensorSpec((0,), tf.int8)


def stand_in() -> Any:
    """Return a dataset for Keras that is never read."""
    return tf.data.Dataset.from_tensors(tf.zeros((0,), tf.int8)).repeat()
