"""Run one endless ``model.fit`` with a custom train function.

Keras gets a stand-in dataset that is never read, and a train function that takes batches from a
`Feed` until the clock's next boundary. This way detcore saves and restores the position in the
data, and chooses the number of batches per call; everything else is Keras's own.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from detcore.types import Length, Unit
from detcore_keras.frameworks import KERAS_MAJOR, keras, tf

if TYPE_CHECKING:
    from detcore_keras.keras_context import TFKerasTrialContext


# Keras counts each call of the train function as one "step".
_ENDLESS = 1 << 62


def fit_until_stopped(
    model: Any,
    *,
    train: Callable[[], Mapping[str, float] | None],
    on_end: Callable[[], None],
) -> None:
    """Run ``model.fit`` until `train` returns None.

    Args:
        model: The compiled model.
        train: Trains some batches and returns their metrics, or None to end.
        on_end: Called when Keras reports that training ended without an error.
    """
    last: Mapping[str, float] = {"loss": 0.0}
    # Keras 2 counts the steps of a model and resets the count when `fit` begins; a restored model
    # continues counting. Keras 3 has no such variable.
    counter = getattr(model, "_train_counter", None) if KERAS_MAJOR == 2 else None
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
            callbacks=[_End(on_end)],
        )
    model.stop_training = False


def epoch_batches(context: TFKerasTrialContext, from_data: int | None) -> int:
    """Return the batches of an epoch: as configured, else from the data; 0 if unknown."""
    records = context.setup.settings.records_per_epoch
    return max(1, records // context.get_global_batch_size()) if records else from_data or 0


def num_epochs(context: TFKerasTrialContext, batches_per_epoch: int) -> int:
    """Return the epochs that ``model.fit`` would be given for the trial's whole length.

    Args:
        context: The trial's context.
        batches_per_epoch: 0 if unknown; then 1 epoch is returned for a length in other units.
    """
    length = context.setup.settings.max_length
    if length is None:
        length = Length(context.planned_batches or 0, Unit.BATCHES)
    count = length.count
    if length.unit is Unit.EPOCHS:
        return count
    if length.unit is Unit.RECORDS:
        count //= context.get_global_batch_size()
    return max(1, math.ceil(count / batches_per_epoch)) if batches_per_epoch else 1


def keras_function(model: Any, kind: Literal["train", "test"]) -> Callable[[Any], Any]:
    """Return the function of an iterator that the model's class makes for Keras to call."""
    attribute = f"{kind}_function"
    before = getattr(model, attribute)
    made = getattr(type(model), f"make_{kind}_function")(model)
    function: Callable[[Any], Any] = made if made is not None else getattr(model, attribute)
    setattr(model, attribute, before)  # making it also sets it, perhaps over ours
    return function


class _End(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Forwards the hook that only Keras can time: training ended without an error."""

    _supports_tf_logs = True

    def __init__(self, on_end: Callable[[], None]) -> None:
        super().__init__()
        self._on_end = on_end

    def on_train_end(self, logs: Any = None) -> None:
        self._on_end()


@contextlib.contextmanager
def replaced_function(
    model: Any, kind: Literal["train", "test"], function: Callable[[], Mapping[str, Any]]
) -> Iterator[None]:
    """Make ``model.fit`` or ``model.evaluate`` over the stand-in data call `function`.

    Sets instance attributes, bypassing Keras's tracking, so the user's class stays unchanged and
    nothing of this is saved with the model. Calls with other data than the stand-in, such as a
    callback's own ``model.train_on_batch``, behave as usual.
    """
    maker = f"make_{kind}_function"
    attributes = vars(model)
    own = {name: attributes.pop(name) for name in (maker,) if name in attributes}
    replacement = _Replacement(model, kind, function)
    attributes[maker] = replacement.make_function
    try:
        yield
    finally:
        del attributes[maker]
        attributes.update(own)
        setattr(model, f"{kind}_function", replacement.before)


class _Replacement:
    """The function that a model calls meanwhile.

    An object, because functions that refer to each other are freed by the garbage collector only:
    an iterator that `function` refers to keeps five threads of TensorFlow until then, and the end
    of a process waited for those of all of its validations.
    """

    def __init__(
        self, model: Any, kind: Literal["train", "test"], function: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._model = model
        self._kind: Literal["train", "test"] = kind
        self._function = function
        self.before = getattr(model, f"{kind}_function")

    def __call__(self, iterator: Any) -> Any:
        if _is_stand_in(iterator):
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


def _is_stand_in(iterator: Any) -> bool:
    return bool(getattr(iterator, "element_spec", None) == _STAND_IN_SPEC)
