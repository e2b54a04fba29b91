"""The one place where TensorFlow and Keras are imported and their versions checked.

Everything else takes them from here: ``from detcore_keras._keras import keras, tf``.
"""

from __future__ import annotations

from detcore.errors import PluginError, PluginNotFoundError

__all__ = ["KERAS_MAJOR", "keras", "tf"]

_OLDEST = (2, 15)

try:
    import tensorflow as tf
except ModuleNotFoundError as error:
    raise PluginNotFoundError(
        f"detcore-keras needs TensorFlow, but {error.name!r} is not installed.\n"
        "TensorFlow is not installed with the plugin, because its version and its CPU or GPU "
        "form are yours to choose.\n"
        '  pip install "tensorflow>=2.15"'
    ) from error

if tuple(int(part) for part in tf.__version__.split(".")[:2]) < _OLDEST:
    raise PluginError(
        f"detcore-keras needs TensorFlow 2.15 or newer; this environment has {tf.__version__}.\n"
        '  pip install "tensorflow>=2.15"'
    )

# What `tf.keras` is depends on TensorFlow's version and on TF_USE_LEGACY_KERAS; the user's own
# `tf.keras` is the one that counts.
keras = tf.keras

# Keras 3 brought `keras.ops`; Keras 2 has no version attribute that its lazy loader would hand on.
KERAS_MAJOR: int = 3 if hasattr(keras, "ops") else 2

if KERAS_MAJOR == 3 and keras.backend.backend() != "tensorflow":
    raise PluginError(
        f"Keras runs on the {keras.backend.backend()!r} back end here, but a TFKerasTrial needs "
        "'tensorflow'.\n"
        "Unset KERAS_BACKEND, or set it to tensorflow; other back ends train through the Core API."
    )
