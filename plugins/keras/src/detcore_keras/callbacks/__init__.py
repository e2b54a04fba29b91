"""Keras callbacks that work at detcore's workloads and validations.

Keras's own callbacks also work in a `detcore_keras.TFKerasTrial`, at the ends of epochs.
"""

from __future__ import annotations

from detcore_keras.callbacks.callback_base import Callback
from detcore_keras.callbacks.tensorboard import TensorBoard, TFKerasTensorBoard
from detcore_keras.callbacks.validation_callbacks import EarlyStopping, ReduceLROnPlateau

__all__ = ["Callback", "EarlyStopping", "ReduceLROnPlateau", "TFKerasTensorBoard", "TensorBoard"]
