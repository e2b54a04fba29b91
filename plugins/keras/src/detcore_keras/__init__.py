"""Train Keras models with detcore: `KerasTrial` on Keras 2, and on the back ends of Keras 3.

The names below are imported on first use. Importing this package does not import Keras.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_keras import callbacks
    from detcore_keras.callbacks import TFKerasTensorBoard
    from detcore_keras.data.data_settings import SequenceAdapter
    from detcore_keras.keras_context import TFKerasExperimentalContext, TFKerasTrialContext
    from detcore_keras.keras_trial import KerasTrial, TFKerasTrial
    from detcore_keras.load_model import load_model_from_checkpoint_path
    from detcore_keras.native_fit import TFKerasNativeContext, init
    from detcore_keras.script_fit import fit
    from detcore_keras.state.load_weights import load_weights_from_checkpoint_path

__version__ = "0.1.0"

__all__ = [
    "KerasTrial",
    "SequenceAdapter",
    "TFKerasExperimentalContext",
    "TFKerasNativeContext",
    "TFKerasTensorBoard",
    "TFKerasTrial",
    "TFKerasTrialContext",
    "__version__",
    "callbacks",
    "fit",
    "init",
    "load_model_from_checkpoint_path",
    "load_weights_from_checkpoint_path",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "": "callbacks",
        "data.data_settings": "SequenceAdapter",
        "keras_context": "TFKerasExperimentalContext TFKerasTrialContext",
        "load_model": "load_model_from_checkpoint_path",
        "native_fit": "TFKerasNativeContext init",
        "script_fit": "fit",
        "keras_trial": "KerasTrial TFKerasTrial",
        "state.load_weights": "load_weights_from_checkpoint_path",
        "callbacks": "TFKerasTensorBoard",
    },
)
