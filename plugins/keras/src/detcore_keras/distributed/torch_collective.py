"""Connect the workers of PyTorch, and sum their gradients."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from detcore.environment import change_environment, read_variables
from detcore_keras.distributed.rendezvous import shared_directory

if TYPE_CHECKING:
    from detcore.core import DistributedContext
    from detcore.errors import DistributedError

_INTERFACE = "GLOO_SOCKET_IFNAME"


class TorchCollective:
    """PyTorch's default process group, as a `Collective`: NCCL with GPUs, otherwise Gloo.

    Args:
        distributed: The workers.
        compress: Whether gradients are sent as half-precision numbers.

    Raises:
        InvalidExperimentError: If there are several machines.
    """

    def __init__(self, distributed: DistributedContext, *, compress: bool) -> None:
        self.size = distributed.size
        self.failure: DistributedError | None = None
        self._compress = compress
        if torch.distributed.is_initialized():
            return
        names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
        if names and not read_variables([_INTERFACE]):
            change_environment({_INTERFACE: names[0]})
        with shared_directory(distributed) as folder:
            torch.distributed.init_process_group(
                "nccl" if torch.cuda.is_available() else "gloo",
                store=torch.distributed.FileStore(str(folder / "workers"), self.size),
                rank=distributed.rank,
                world_size=self.size,
            )

    def sum_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the sums over the workers, with one message for each type."""
        sums = list(gradients)
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            indices = [i for i, gradient in enumerate(gradients) if gradient.dtype == dtype]
            flat = torch.cat([gradients[index].detach().reshape(-1) for index in indices])
            if self._compress and dtype.is_floating_point:
                flat = flat.half()
            torch.distributed.all_reduce(flat)
            parts = flat.to(dtype).split([gradients[index].numel() for index in indices])
            for index, part in zip(indices, parts, strict=True):
                sums[index] = part.view_as(gradients[index])
        return sums
