"""Choose how workers exchange gradients: Horovod for Keras 2, detcore's collectives for Keras 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from detcore_keras.frameworks import KERAS_MAJOR

if TYPE_CHECKING:
    from detcore.core import DistributedContext
    from detcore.errors import DistributedError
    from detcore.trial import PrepareOptions


class Collective(Protocol):
    """Sums of gradients, and broadcasts.

    All workers make the same calls in the same order.

    Attributes:
        size: Number of workers.
        failure: Error after which no sum can succeed, if the error that a graph raised hides it.
    """

    size: int
    failure: DistributedError | None

    def sum_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the sums over the workers, in few messages.

        Called eagerly, or while a function is traced, also inside a branch of ``tf.cond`` or the
        body of a loop. The enclosing name scope is the same on all workers, and differs for each
        call within a graph.

        Args:
            gradients: Dense tensors, with the same shapes and types on all workers.
        """

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Set variables to the chief's values. Called eagerly.

        Args:
            variables: ``tf.Variable`` objects, with the same shapes and types on all workers.
        """


def prepare_collective(options: PrepareOptions) -> None:
    """Prepare several workers before TensorFlow runs its first operation."""
    if KERAS_MAJOR == 2:
        from detcore_keras.distributed.horovod_collective import start_horovod

        start_horovod(options)
    else:
        from detcore_keras.distributed.tensorflow_collective import prepare_process

        prepare_process(options)


def open_collective(distributed: DistributedContext, *, compress: bool) -> Collective:
    """Return the collectives of several workers.

    Args:
        distributed: The workers.
        compress: Whether gradients are sent as half-precision numbers.
    """
    if KERAS_MAJOR == 2:
        from detcore_keras.distributed.horovod_collective import HorovodCollective

        return HorovodCollective(compress=compress)
    from detcore_keras.distributed.tensorflow_collective import TensorFlowCollective

    return TensorFlowCollective(distributed, compress=compress)
