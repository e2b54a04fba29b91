"""TensorFlow, Keras and its version, for tests of the back ends on TensorFlow."""

from __future__ import annotations

import tensorflow as tf

from detcore_keras.frameworks import backend, keras

__all__ = ["KERAS_MAJOR", "keras", "tf"]

KERAS_MAJOR = backend.keras_major
