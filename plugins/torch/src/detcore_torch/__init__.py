"""PyTorch trials for detcore: `PyTorchTrial`, its context and its data loader.

The names below are imported on first use: importing this package imports no PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore_torch._callbacks import PyTorchCallback
    from detcore_torch._context import PyTorchTrialContext
    from detcore_torch._load import (
        load_model_from_checkpoint_path,
        load_trial_from_checkpoint_path,
        load_weights_from_checkpoint_path,
    )
    from detcore_torch._loader import DataLoader
    from detcore_torch._reducers import MetricReducer, Reducer
    from detcore_torch._resumable import ResumableLoader, resumable
    from detcore_torch._schedulers import LRScheduler
    from detcore_torch._trial import PyTorchTrial

__version__ = "0.1.0"

__all__ = [
    "DataLoader",
    "LRScheduler",
    "MetricReducer",
    "PyTorchCallback",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Reducer",
    "ResumableLoader",
    "__version__",
    "load_model_from_checkpoint_path",
    "load_trial_from_checkpoint_path",
    "load_weights_from_checkpoint_path",
    "resumable",
]

_HOMES = {
    "DataLoader": "_loader",
    "LRScheduler": "_schedulers",
    "MetricReducer": "_reducers",
    "PyTorchCallback": "_callbacks",
    "PyTorchTrial": "_trial",
    "PyTorchTrialContext": "_context",
    "Reducer": "_reducers",
    "ResumableLoader": "_resumable",
    "load_model_from_checkpoint_path": "_load",
    "load_trial_from_checkpoint_path": "_load",
    "load_weights_from_checkpoint_path": "_load",
    "resumable": "_resumable",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore_torch' has no attribute {name!r}")
    return getattr(importlib.import_module(f"detcore_torch.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
