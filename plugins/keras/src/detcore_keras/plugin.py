"""Register the Keras framework, without importing it."""

from __future__ import annotations

from detcore import hookimpl
from detcore.types import Framework

__all__ = ["detcore_register_framework"]


@hookimpl
def detcore_register_framework() -> Framework:
    """Register ``KerasTrial``."""
    return Framework(
        name="keras",
        trial_class="detcore_keras.keras_trial:KerasTrial",
        context_class="detcore_keras.keras_context:TFKerasTrialContext",
        controller="detcore_keras.keras_controller:KerasController",
        prepare_worker="detcore_keras.worker_setup:prepare_worker",
        load_checkpoint="detcore_keras.load_model:load_model_from_checkpoint_path",
        reads=("tensorflow:h5", "tensorflow:saved_weights"),
        native_init="detcore_keras.native_fit:init",
        several_workers=True,
        requires=("keras",),
        related=("tensorflow", "jax", "torch", "numpy", "horovod"),
        # TensorFlow's C++ code prints a page of notices at each start (oneDNN, CPU instructions).
        # This variable hides all but errors.
        variables=(("TF_CPP_MIN_LOG_LEVEL", "2"),),
        import_variables=("TF_", "KERAS_", "XLA_", "JAX_", "TORCH", "PYTORCH_"),
        # Notices that no variable turns off.
        notices=(
            r"WARNING: All log messages before absl::InitializeLog\(\) is called .*",
            r"I0000 .*\] oneDNN custom operations are on\..*",
            r"WARNING:tensorflow:From .* The name \S+ is deprecated\. Please use \S+ instead\.",
            # Warnings about calls in the user's own code are shown.
            r"WARNING:tensorflow:From \S*/site-packages/.* is deprecated and will be removed .*"
            r"\nInstructions for updating:\n.*",
        ),
        install_hint='pip install "tensorflow>=2.15"',
    )
