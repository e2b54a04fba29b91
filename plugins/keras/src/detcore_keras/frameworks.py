"""Import TensorFlow and Keras and check their versions, in this module only.

All other modules import them from here: ``from detcore_keras.frameworks import keras, tf``.
"""

from __future__ import annotations

import logging

from detcore.errors import InvalidExperimentError, PluginError, PluginNotFoundError

_logger = logging.getLogger("detcore.keras")

_OLDEST = (2, 15)

try:
    import tensorflow
except ModuleNotFoundError as error:
    raise PluginNotFoundError(
        f"detcore-keras needs TensorFlow, but {error.name!r} is not installed.\n"
        "The plugin does not install TensorFlow, so that you can choose its version and its CPU "
        "or GPU build.\n"
        '  pip install "tensorflow>=2.15"'
    ) from error

tf = tensorflow
if tuple(int(part) for part in tf.__version__.split(".")[:2]) < _OLDEST:
    raise PluginError(
        f"detcore-keras needs TensorFlow 2.15 or newer; this environment has {tf.__version__}.\n"
        '  pip install "tensorflow>=2.15"'
    )

# The meaning of `tf.keras` depends on TensorFlow's version and on TF_USE_LEGACY_KERAS. The user's
# code uses the same `tf.keras`.
keras = tf.keras

# Only Keras 3 has `keras.ops`; Keras 2's lazy loader does not expose a version attribute.
KERAS_MAJOR: int = 3 if hasattr(keras, "ops") else 2

if KERAS_MAJOR == 3 and keras.backend.backend() != "tensorflow":
    raise PluginError(
        f"Keras runs on the {keras.backend.backend()!r} back end here, but a TFKerasTrial needs "
        "'tensorflow'.\n"
        "Unset KERAS_BACKEND, or set it to tensorflow. Other back ends train through the Core API."
    )


def keep_eager() -> None:
    """Turn TensorFlow 2's behaviour on again if the user's code has turned it off.

    Raises:
        InvalidExperimentError: If the code has created operations with it turned off.
    """
    if tf.compat.v1.executing_eagerly_outside_functions():
        return
    operations = tf.compat.v1.get_default_graph().get_operations()
    if operations:
        raise InvalidExperimentError(
            "the code turned TensorFlow 2's behaviour off and then created a graph "
            f"({len(operations)} operations, the first is {operations[0].name!r}), but a "
            "TFKerasTrial needs TensorFlow 2's behaviour.\n"
            "Create models and data only in the trial's methods, and remove "
            "tf.compat.v1.disable_v2_behavior() or disable_eager_execution(). Only an "
            "EstimatorTrial is trained without TensorFlow 2's behaviour."
        )
    # TensorFlow allows turning it on only without a default graph. The default graph is empty here.
    tf.compat.v1.reset_default_graph()
    tf.compat.v1.enable_v2_behavior()
    # If it was off before TensorFlow first ran, functions continue to create their variables in a
    # graph. TensorFlow has no public name for this state. Checked on 2.15 and 2.21.
    from tensorflow.python.eager import context

    switches = context.context().context_switches
    if not switches.stack:
        switches.push(False, context.eager_mode, None)
    _logger.warning(
        "the code turns TensorFlow 2's behaviour off (tf.compat.v1.disable_v2_behavior or "
        "disable_eager_execution). A TFKerasTrial needs it, so detcore turned it on again. Remove "
        "the call"
    )
