"""Import Keras on its back end and check the versions, in this module only.

All other modules import both from here: ``from detcore_keras.frameworks import backend, keras``.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from detcore.errors import PluginError, PluginNotFoundError

if TYPE_CHECKING:
    from detcore_keras.backends.backend import Backend

_INSTALL = {
    "tensorflow": 'pip install "tensorflow>=2.15"',
    "jax": 'pip install "keras>=3.12" jax',
    "torch": 'pip install "keras>=3.12" torch',
}


def is_tf_dataset(value: object) -> bool:
    """Whether a value is a ``tf.data.Dataset``. Does not import TensorFlow."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(value, tensorflow.data.Dataset)


def _open_backend() -> Backend:
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        return _open_tensorflow()
    try:
        import keras
    except ModuleNotFoundError as error:
        raise _make_missing_error(str(error.name)) from error
    except ValueError as error:
        raise _make_unknown_error(str(error)) from error
    name = keras.backend.backend() if hasattr(keras, "ops") else "tensorflow"
    if name == "tensorflow":
        return _open_tensorflow()
    if name == "jax":
        from detcore_keras.backends.jax_backend import JaxBackend

        return JaxBackend(keras)
    if name == "torch":
        from detcore_keras.backends.torch_backend import TorchBackend

        return TorchBackend(keras)
    raise _make_unknown_error(f"Keras runs on the {name!r} back end here")


def _open_tensorflow() -> Backend:
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        raise _make_missing_error(str(error.name)) from error
    # Only Keras 3 has `keras.ops`; Keras 2's lazy loader does not expose a version attribute.
    if hasattr(tf.keras, "ops"):
        from detcore_keras.backends.tensorflow_backend import TensorFlowBackend

        return TensorFlowBackend()
    from detcore_keras.backends.keras2_backend import Keras2Backend

    return Keras2Backend()


def _make_missing_error(module: str) -> PluginError:
    package = module.partition(".")[0]
    configured = os.environ.get("KERAS_BACKEND", "tensorflow")
    if configured not in _INSTALL:
        return _make_unknown_error(f"KERAS_BACKEND is {configured!r}")
    name = package if package in _INSTALL else configured
    alternatives = " or ".join(f"KERAS_BACKEND={key}" for key in _INSTALL if key != name)
    return PluginNotFoundError(
        f"detcore-keras needs Keras on the back end {name!r}, but {package!r} is not installed.\n"
        "The plugin installs neither Keras nor a back end, so that you can choose their versions "
        "and CPU or GPU builds.\n"
        f"  {_INSTALL[name]}\n"
        f"Or choose a back end that is installed: {alternatives}."
    )


def _make_unknown_error(problem: str) -> PluginError:
    return PluginError(
        f"{problem}, but a KerasTrial needs tensorflow, jax or torch.\n"
        "Set KERAS_BACKEND to one of these."
    )


backend: Backend = _open_backend()
keras: Any = backend.keras
