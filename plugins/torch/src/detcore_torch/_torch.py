"""Import PyTorch and check its version, in this module only.

All other modules import it from here: ``from detcore_torch._torch import torch``.
"""

from __future__ import annotations

from detcore.errors import PluginError, PluginNotFoundError

__all__ = ["torch"]

_OLDEST = (2, 2)

try:
    import torch
except ModuleNotFoundError as error:
    raise PluginNotFoundError(
        f"detcore-torch needs PyTorch, but {error.name!r} is not installed.\n"
        "PyTorch is not installed with the plugin, because its version and its CPU or GPU form "
        "are yours to choose.\n"
        '  pip install "torch>=2.2"'
    ) from error

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _OLDEST:
    raise PluginError(
        f"detcore-torch needs PyTorch 2.2 or newer; this environment has {torch.__version__}.\n"
        '  pip install "torch>=2.2"'
    )
