"""Sum and broadcast between plain processes, for Keras 3, whose TensorFlow has no Horovod.

TensorFlow's own collectives between processes need a gRPC server in each worker. It listens on all
network interfaces and lets anyone run graphs, so detcore does not use these collectives. Instead,
gradients leave the graph for a Python function once per step.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from detcore.errors import DistributedError
from detcore_keras.distributed.shared_sum import SharedSum, add_up

if TYPE_CHECKING:
    from detcore.core import DistributedContext


class TensorFlowCollective:
    """Collectives over shared memory within a machine and `DistributedContext` between machines.

    A model that uses it cannot be compiled with ``jit_compile``: XLA cannot call Python.

    Attributes:
        size: Number of workers.
        failure: Error after which no sum can succeed, or None. TensorFlow hides the error that a
            Python function in a graph has raised.
    """

    def __init__(self, distributed: DistributedContext, *, compress: bool) -> None:
        """Set up the collectives.

        Args:
            distributed: The workers.
            compress: Whether gradients are sent as half-precision numbers.

        Raises:
            DistributedError: If the system has no anonymous shared memory (it is not Linux).
        """
        if not hasattr(os, "memfd_create"):
            raise DistributedError(
                f"{distributed.size} workers cannot train a Keras 3 model on this system.\n"
                "They sum their gradients in anonymous shared memory, which only Linux has.\n"
                "Set resources.slots_per_trial: 1."
            )
        self._distributed = distributed
        self._compress = compress
        self.size = distributed.size
        self.failure: DistributedError | None = None
        self._shared = SharedSum(distributed) if distributed.local_size > 1 else None

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]  # TensorFlow
    def sum_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the sums over the workers, with the same bits on all of them."""
        if not gradients:
            return []
        label = tf.get_current_name_scope()
        tensors = [tf.convert_to_tensor(gradient) for gradient in gradients]
        if self._compress:
            tensors = [tf.cast(g, tf.float16) if g.dtype.is_floating else g for g in tensors]
        sums = tf.nest.flatten(
            tf.numpy_function(
                functools.partial(self._sum_arrays, label),
                tensors,
                [part.dtype for part in tensors],
            )
        )
        for part, total in zip(tensors, sums, strict=True):
            total.set_shape(part.shape)
        return [
            tf.cast(total, gradient.dtype) for total, gradient in zip(sums, gradients, strict=True)
        ]

    def _sum_arrays(self, label: str, *parts: Any) -> list[Any]:
        if self.failure is not None:
            raise self.failure
        try:
            sums = [np.asarray(part) for part in parts]
            if self._shared is not None:
                sums = self._shared.sum_arrays(sums, label)
            return self._sum_nodes(sums) if self._distributed.cross_size > 1 else sums
        except DistributedError as error:
            self.failure = error
            raise

    def _sum_nodes(self, sums: list[Any]) -> list[Any]:
        """Add the values of the first worker of each machine, in the order of the machines."""
        is_first = self._distributed.local_rank == 0
        gathered = self._distributed.gather(sums if is_first else None)
        if gathered is not None:
            rows = [row for row in gathered if row is not None]
            sums = [add_up(terms, np.empty_like(terms[0])) for terms in zip(*rows, strict=True)]
        return self._distributed.broadcast(sums)
