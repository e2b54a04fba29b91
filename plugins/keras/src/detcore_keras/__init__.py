"""Train Keras models with detcore: `TFKerasTrial` on Keras 2 and Keras 3.

The names below are imported on first use: importing this package imports no TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_keras import callbacks
    from detcore_keras._context import (
        SequenceAdapter,
        TFKerasExperimentalContext,
        TFKerasTrialContext,
    )
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "": "callbacks",
        "_context": "SequenceAdapter TFKerasExperimentalContext TFKerasTrialContext",
        "_detcore_callback": "DetcoreCallback",
        "_load": "load_model_from_checkpoint_path load_weights_from_checkpoint_path",
        "_native": "TFKerasNativeContext init",
        "_trial": "TFKerasTrial",
        "callbacks": "TFKerasTensorBoard",
    },
)
