"""Connect the workers of JAX and PyTorch without a port that accepts other users."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.errors import InvalidExperimentError

if TYPE_CHECKING:
    from detcore.core import DistributedContext


@contextlib.contextmanager
def shared_directory(distributed: DistributedContext) -> Iterator[Path]:
    """Create a directory that only the user can access, for the workers of one machine.

    All workers must call this. The directory is deleted when all of them have left the block.

    Raises:
        InvalidExperimentError: If there are several machines.
    """
    if distributed.cross_size > 1:
        raise InvalidExperimentError(
            f"the trial has workers on {distributed.cross_size} machines, but detcore trains Keras "
            "models on JAX and PyTorch on one.\n"
            "Start it on one machine (detcore run CONFIG.yaml --slots N), or set "
            "KERAS_BACKEND=tensorflow."
        )
    folder = tempfile.mkdtemp(prefix="detcore-keras-") if distributed.rank == 0 else ""
    try:
        yield Path(distributed.broadcast(folder))
        distributed.barrier()
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
