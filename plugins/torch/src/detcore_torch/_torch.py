"""The one place where PyTorch is imported and its version checked."""

from __future__ import annotations

import torch

from detcore.errors import PluginNotFoundError

__all__ = ["torch"]

_OLDEST = (2, 2)

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _OLDEST:
    raise PluginNotFoundError(
        f"detcore-torch needs PyTorch 2.2 or newer, and this is {torch.__version__}.\n"
        'Install a newer one: pip install "torch>=2.2"'
    )
