"""The process group in which `DistributedDataParallel` averages gradients."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.environment import change_environment, read_variables
from detcore.errors import InvalidExperimentError, PeerLostError
from detcore_torch.libraries import torch

if TYPE_CHECKING:
    from detcore.distributed import DistributedContext


_INTERFACE = "GLOO_SOCKET_IFNAME"
# Error messages of Gloo for a closed connection.
_LOST_CONNECTION = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


class WorkerGroup:
    """PyTorch's default process group for the workers of one machine.

    The workers find each other through a file in a directory that only their user can access, so no
    port accepts other users. Gloo's connections stay on the loopback interface. With GPUs, NCCL is
    used.

    Args:
        distributed: The workers.
    """

    def __init__(self, distributed: DistributedContext) -> None:
        self._distributed = distributed
        self._is_open = False

    def open(self) -> None:
        """Join the other workers. All workers must call this. No-op if the group is open.

        Raises:
            InvalidExperimentError: If there are several machines.
            PeerLostError: If a worker has exited.
        """
        place = self._distributed
        if self._is_open or place.size == 1:
            return
        if place.cross_size > 1:
            raise InvalidExperimentError(
                f"the trial has workers on {place.cross_size} machines; detcore-torch trains on "
                "one.\nStart it on one machine: detcore run CONFIG.yaml --slots N"
            )
        folder = tempfile.mkdtemp(prefix="detcore-torch-") if place.rank == 0 else ""
        try:
            path = Path(place.broadcast(folder)) / "rendezvous"
            with _on_loopback():
                torch.distributed.init_process_group(
                    "nccl" if torch.cuda.is_available() else "gloo",
                    store=torch.distributed.FileStore(str(path), place.size),
                    rank=place.rank,
                    world_size=place.size,
                )
            place.barrier()
        finally:
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
        self._is_open = True

    def close(self) -> None:
        """Leave the group."""
        if self._is_open:
            torch.distributed.destroy_process_group()
        self._is_open = False

    def broadcast_from_chief(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the chief's values into tensors, in place, if the group is open."""
        if self._is_open:
            broadcast_from_chief(tensors)


def broadcast_from_chief(tensors: Iterable[torch.Tensor]) -> None:
    """Copy rank 0's values into tensors, in place, over the default process group.

    All workers must call this. There is one exchange per element type and device.
    """
    by_type: dict[object, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for group in by_type.values():
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in group])
        torch.distributed.broadcast(flat, 0)
        if torch.distributed.get_rank():
            parts = flat.split([tensor.numel() for tensor in group])
            for tensor, part in zip(group, parts, strict=True):
                tensor.detach().copy_(part.view_as(tensor))


def share_buffers(models: Iterable[torch.nn.Module]) -> None:
    """Give all workers the chief's buffers, which checkpoints contain; all workers must call this.

    ``DistributedDataParallel`` does so before each batch of training, but not after it and not in
    a validation. Without other workers, nothing changes.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        broadcast_from_chief(buffer for model in models for buffer in model.buffers())


def settle_buckets(model: torch.nn.Module) -> None:
    """Make each ``DistributedDataParallel`` in a model fix its order of gradients now.

    It otherwise reorders the gradients after the first step of a process, by when they became
    ready. In a resumed process, that step would be a later step of training. With three or more
    workers, the position of a number in the exchange decides in which order the
    workers' terms are summed. detcore performs steps with zero gradients here, so that all
    processes have the same order from their first step.

    All workers must call this. Parameters, gradients, buffers and generators do not change. With
    ``find_unused_parameters`` the order never changes. With ``static_graph`` PyTorch assumes that
    all steps are like the first, so the first step must be the user's.
    """
    for wrapped in model.modules():
        if not isinstance(wrapped, torch.nn.parallel.DistributedDataParallel):
            continue
        if wrapped.find_unused_parameters or wrapped.static_graph or wrapped.mixed_precision:
            continue
        inner = wrapped.module
        gradients = [(parameter, parameter.grad) for parameter in inner.parameters()]
        try:
            wrapped.module = _ZeroLoss(inner)
            for _ in range(2):  # the second step uses the order of the first
                for parameter, _ in gradients:
                    parameter.grad = None
                with torch.enable_grad():
                    # On a GPU, calling it without an argument fails.
                    torch.autograd.backward(wrapped(None))
        finally:
            wrapped.module = inner
            for parameter, gradient in gradients:
                parameter.grad = gradient


class _ZeroLoss(torch.nn.Module):  # type: ignore[misc]  # torch is not typed
    """A loss of zero that gives all parameters of a module zero gradients, in reverse order.

    Args:
        module: The module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.named_buffers = module.named_buffers  # buffers that a forward pass may exchange
        self._trained = [part for part in module.parameters() if part.requires_grad]
        embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        self._sparse = {
            part.weight for part in module.modules() if isinstance(part, embeddings) and part.sparse
        }

    def forward(self, _: None) -> torch.Tensor:
        """Return the loss without reading parameters, which may be infinite."""
        device = self._trained[0].device
        total = torch.zeros((), device=device, requires_grad=True)
        for parameter in self._trained:
            if parameter in self._sparse:
                none = torch.zeros(0, dtype=torch.long, device=parameter.device)
                part = torch.nn.functional.embedding(none, parameter, sparse=True)
            else:
                part = parameter.reshape(-1)[:0]
            total = total + part.abs().sum().to(device, torch.float32)
        return total


@contextlib.contextmanager
def lost_peers_raised(distributed: DistributedContext) -> Iterator[None]:
    """Translate Gloo's connection errors into `PeerLostError`.

    Raises:
        PeerLostError: If another worker has exited.
    """
    try:
        yield
    except RuntimeError as error:
        if distributed.size > 1 and any(sign in str(error) for sign in _LOST_CONNECTION):
            raise PeerLostError(
                f"rank {distributed.rank} lost another worker: the connection ended while "
                "gradients were averaged.\nThe output of the other workers shows the reason."
            ) from error
        raise


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Make Gloo use the loopback interface, unless the user has chosen an interface."""
    name = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if name is None or read_variables([_INTERFACE]):
        yield
        return
    change_environment({_INTERFACE: name})
    try:
        yield
    finally:
        change_environment({}, without=[_INTERFACE])
