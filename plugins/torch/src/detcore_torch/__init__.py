"""PyTorch trials for detcore: `PyTorchTrial`, its context and its data loader.

The names below are imported on first use: importing this package imports no PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_torch.callbacks import ClipGradsL2Norm, ClipGradsL2Value, PyTorchCallback
    from detcore_torch.data.data_loader import DataLoader
    from detcore_torch.data.iterator_source import IteratorSource
    from detcore_torch.data.resumable_loader import ResumableLoader, resumable
    from detcore_torch.determined_context import reset_parameters
    from detcore_torch.load_checkpoint import (
        load_model_from_checkpoint_path,
        load_trial_from_checkpoint_path,
        load_weights_from_checkpoint_path,
    )
    from detcore_torch.lr_scheduler import LRScheduler
    from detcore_torch.metric_reducers import MetricReducer, Reducer
    from detcore_torch.pytorch_context import PyTorchTrialContext
    from detcore_torch.pytorch_trial import PyTorchTrial
    from detcore_torch.tensorboard_writer import TorchWriter
    from detcore_torch.trainer import Batch, Epoch, Record, Trainer, TrainUnit, init

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "ClipGradsL2Norm",
    "ClipGradsL2Value",
    "DataLoader",
    "Epoch",
    "IteratorSource",
    "LRScheduler",
    "MetricReducer",
    "PyTorchCallback",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Record",
    "Reducer",
    "ResumableLoader",
    "TorchWriter",
    "TrainUnit",
    "Trainer",
    "__version__",
    "init",
    "load_model_from_checkpoint_path",
    "load_trial_from_checkpoint_path",
    "load_weights_from_checkpoint_path",
    "reset_parameters",
    "resumable",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "callbacks": "ClipGradsL2Norm ClipGradsL2Value PyTorchCallback",
        "data.data_loader": "DataLoader",
        "data.iterator_source": "IteratorSource",
        "data.resumable_loader": "ResumableLoader resumable",
        "determined_context": "reset_parameters",
        "load_checkpoint": (
            "load_model_from_checkpoint_path load_trial_from_checkpoint_path "
            "load_weights_from_checkpoint_path"
        ),
        "lr_scheduler": "LRScheduler",
        "metric_reducers": "MetricReducer Reducer",
        "pytorch_context": "PyTorchTrialContext",
        "pytorch_trial": "PyTorchTrial",
        "tensorboard_writer": "TorchWriter",
        "trainer": "Batch Epoch Record TrainUnit Trainer init",
    },
)
