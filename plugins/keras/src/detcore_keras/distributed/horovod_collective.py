"""Sum gradients over Horovod, for Keras 2."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from detcore.errors import DistributedError, PluginNotFoundError

if TYPE_CHECKING:
    from detcore.core import DistributedContext


def _start_horovod(distributed: DistributedContext) -> Any:
    """Initialize Horovod, join the other workers, and return its module."""
    hvd = _import_horovod()
    hvd.init()
    horovod_rank_and_size, rank_and_size = (
        (hvd.rank(), hvd.size()),
        (distributed.rank, distributed.size),
    )
    if horovod_rank_and_size == (0, 1) and importlib.util.find_spec("detcore_horovod") is None:
        raise PluginNotFoundError(
            "the workers of a Keras 2 model connect through detcore-horovod, which is not "
            "installed.\nInstall it with: pip install 'detcore[horovod]'\n"
            "Or set resources.slots_per_trial: 1."
        )
    if horovod_rank_and_size != rank_and_size:
        raise DistributedError(
            f"Horovod reports rank {horovod_rank_and_size[0]} of {horovod_rank_and_size[1]} for "
            f"this worker, but it is rank {rank_and_size[0]} of {rank_and_size[1]} of the trial.\n"
            "The workers would exchange gradients with other workers than they share data with.\n"
            "Start the workers with `detcore run`, or with `detcore launch --launcher horovod`, "
            "which set Horovod's variables."
        )
    return hvd


class HorovodCollective:
    """Horovod's collectives, as a `Collective`.

    Args:
        distributed: This worker's ranks.
        compress: Whether gradients travel as half-precision numbers.

    Raises:
        PluginNotFoundError: If Horovod or detcore-horovod is not installed.
        DistributedError: If Horovod's ranks differ from detcore's.
    """

    def __init__(self, distributed: DistributedContext, *, compress: bool) -> None:
        self._hvd = _start_horovod(distributed)
        self.size: int = self._hvd.size()
        self.failure: DistributedError | None = None
        kinds = self._hvd.Compression
        self._compression = kinds.fp16 if compress else kinds.none

    def sum_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the sums over the workers."""
        # Workers match operations by name. At run time, the name begins with the names of the
        # functions that inlined the operation. These may differ between workers if a function was
        # traced for another kind of input. Only the last part counts, so it must be unique.
        scope = tf.get_current_name_scope().replace("/", ".")
        sums: list[Any] = self._hvd.grouped_allreduce(
            list(gradients),
            op=self._hvd.Sum,
            compression=self._compression,
            name=f"sum.{scope}" if scope else "sum",
            ignore_name_scope=True,
        )
        return sums


def _import_horovod() -> Any:
    try:
        return importlib.import_module("horovod.tensorflow")
    except ImportError as error:
        raise PluginNotFoundError(
            f"several workers train a Keras 2 model over Horovod, which cannot be imported: "
            f"{error}.\n"
            "Build Horovod for the installed TensorFlow, with cmake and a C++17 compiler:\n"
            "  HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITH_GLOO=1 "
            "HOROVOD_WITHOUT_MPI=1 pip install --no-build-isolation horovod==0.28.1\n"
            "Or set resources.slots_per_trial: 1."
        ) from error
