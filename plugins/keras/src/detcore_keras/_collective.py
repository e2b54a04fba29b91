"""Define the collectives for tensors: sums of gradients, and broadcasts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from detcore_keras._keras import KERAS_MAJOR

if TYPE_CHECKING:
    from detcore.errors import DistributedError
    from detcore.trial import PrepareOptions
    from detcore_keras._context import TFKerasTrialContext


class Collective(Protocol):
    """The collectives of one back end. All workers make the same calls in the same order.

    Attributes:
        name: "horovod" or "tensorflow".
        failure: Why no sum can succeed any more, if the error that a graph raised hides it.
    """

    name: str
    failure: DistributedError | None

    def sum_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the sums over the workers, in few messages.

        Called eagerly, or while a function is traced, also inside a branch of ``tf.cond`` or the
        body of a loop. The enclosing name scope is the same on all workers, and differs for each
        call within a graph.

        Args:
            gradients: Dense tensors; the same shapes and types on all workers.
        """

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Set variables to the chief's values; called eagerly.

        Args:
            variables: ``tf.Variable`` objects; the same shapes and types on all workers.
        """

    def close(self) -> None:
        """Release resources."""


def prepare_collective(options: PrepareOptions) -> None:
    """Prepare several workers before TensorFlow runs its first operation.

    Args:
        options: Arguments of `prepare_worker`; the ``world_size`` is more than 1.

    Raises:
        PluginNotFoundError: If a required package is not installed.
        DistributedError: If the back end has other ranks than detcore.
    """
    if KERAS_MAJOR == 2:
        from detcore_keras._collective_horovod import start_horovod

        start_horovod(options)
        return
    from detcore_keras._collective_tf import prepare_process

    prepare_process(options)


def open_collective(context: TFKerasTrialContext) -> Collective:
    """Return the collectives between the workers of a trial: Horovod's, or TensorFlow's own.

    Called once per process and on all workers together, after `prepare_collective`.

    Args:
        context: The trial's context; it has more than one worker.
    """
    if KERAS_MAJOR == 2:
        from detcore_keras._collective_horovod import HorovodCollective

        return HorovodCollective(compress=context.setup.gradients.gradient_compression)
    from detcore_keras._collective_tf import TensorFlowCollective

    compress = context.setup.gradients.gradient_compression
    return TensorFlowCollective(context.distributed, compress=compress)
