"""Define errors of the stand-alone Estimator."""

from __future__ import annotations

from detcore.errors import DetcoreError
from detcore_estimator._tf import tf1


class NanLossDuringTrainingError(
    DetcoreError,
    tf1.train.NanLossDuringTrainingError,  # type: ignore[misc]  # TensorFlow has no types
):
    """The loss of a training step is not a number.

    The variables are useless from that step on, so no checkpoint of it is written; the ones
    before are untouched. It is also TensorFlow's error of this name, and a ``RuntimeError``.

    Attributes:
        step: The global step after which the loss was found.
    """

    def __init__(self, step: int) -> None:
        super().__init__(
            f"the loss is NaN (not a number) at global step {step}.\n"
            "The step has spoilt the variables; nothing of it was saved.\n"
            "Lower the learning rate, clip the gradients, or look for log(0), 0/0 and bad records "
            "in the data."
        )
        self.step = step

    def __str__(self) -> str:
        # TensorFlow's class has a fixed text.
        return str(self.args[0])
