"""Train Keras models with detcore: `TFKerasTrial` on Keras 2 and Keras 3.

The names below are imported on first use: importing this package imports no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore_keras import callbacks
    from detcore_keras._adapter import SequenceAdapter
    from detcore_keras._context import TFKerasExperimentalContext, TFKerasTrialContext
    from detcore_keras._detcore_callback import DetcoreCallback
    from detcore_keras._load import (
        load_model_from_checkpoint_path,
        load_weights_from_checkpoint_path,
    )
    from detcore_keras._native import TFKerasNativeContext, init
    from detcore_keras._trial import TFKerasTrial
    from detcore_keras.callbacks import TFKerasTensorBoard

__version__ = "0.1.0"

__all__ = [
    "DetcoreCallback",
    "SequenceAdapter",
    "TFKerasExperimentalContext",
    "TFKerasNativeContext",
    "TFKerasTensorBoard",
    "TFKerasTrial",
    "TFKerasTrialContext",
    "__version__",
    "callbacks",
    "init",
    "load_model_from_checkpoint_path",
    "load_weights_from_checkpoint_path",
]

_HOMES = {
    "DetcoreCallback": "_detcore_callback",
    "SequenceAdapter": "_adapter",
    "TFKerasExperimentalContext": "_context",
    "TFKerasNativeContext": "_native",
    "TFKerasTensorBoard": "callbacks",
    "TFKerasTrial": "_trial",
    "TFKerasTrialContext": "_context",
    "callbacks": "callbacks",
    "init": "_native",
    "load_model_from_checkpoint_path": "_load",
    "load_weights_from_checkpoint_path": "_load",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore_keras' has no attribute {name!r}")
    module = importlib.import_module(f"detcore_keras.{home}")
    return module if home == name else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
