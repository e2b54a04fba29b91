"""PyTorch trials for detcore: `PyTorchTrial`, its context and its data loader.

The names below are imported on first use: importing this package imports no PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_torch._callbacks import PyTorchCallback
    from detcore_torch._context import PyTorchTrialContext
    from detcore_torch._iterator_source import IteratorSource
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
    "IteratorSource",
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_callbacks": "PyTorchCallback",
        "_context": "PyTorchTrialContext",
        "_iterator_source": "IteratorSource",
        "_load": (
            "load_model_from_checkpoint_path load_trial_from_checkpoint_path "
            "load_weights_from_checkpoint_path"
        ),
        "_loader": "DataLoader",
        "_reducers": "MetricReducer Reducer",
        "_resumable": "ResumableLoader resumable",
        "_schedulers": "LRScheduler",
        "_trial": "PyTorchTrial",
    },
)
