"""Tensors and generators of PyTorch in the attributes of users' callbacks."""

from __future__ import annotations

from typing import Any

from detcore.trial import AttributeCodec
from detcore_torch._torch import torch


class TorchCodec(AttributeCodec):
    """Reads and restores tensors, ``torch.Generator`` and objects with ``state_dict``."""

    def read_tensor(self, value: Any) -> Any:
        """Return the bytes of a tensor, or None."""
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return None
        return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()

    def assign_tensor(self, current: Any, saved: Any) -> Any:
        """Copy a saved tensor into the present one, which may be on a GPU, if it fits."""
        if not isinstance(current, torch.Tensor) or (current.shape, current.dtype) != (
            saved.shape,
            saved.dtype,
        ):
            return saved
        with torch.no_grad():
            return current.copy_(saved)

    def get_state(self, value: Any) -> Any:
        """Return the state of a generator, or what ``state_dict`` returns."""
        return value.get_state() if isinstance(value, torch.Generator) else super().get_state(value)

    def set_state(self, value: Any, state: Any) -> None:
        """Restore a state that `get_state` returned."""
        if isinstance(value, torch.Generator):
            value.set_state(state)
        else:
            super().set_state(value, state)
