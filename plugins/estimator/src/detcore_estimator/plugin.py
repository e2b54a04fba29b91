"""Register the Estimator framework, without importing it."""

from __future__ import annotations

from detcore import hookimpl
from detcore.types import Framework

__all__ = ["detcore_register_framework"]


@hookimpl
def detcore_register_framework() -> Framework:
    """Register ``EstimatorTrial``."""
    return Framework(
        name="estimator",
        trial_class="detcore_estimator.estimator_trial:EstimatorTrial",
        context_class="detcore_estimator.estimator_context:EstimatorTrialContext",
        controller="detcore_estimator.estimator_controller:EstimatorController",
        prepare_worker="detcore_estimator.worker_setup:prepare_worker",
        load_checkpoint="detcore_estimator.load_checkpoint:load_estimator_from_checkpoint_path",
        reads=("tensorflow", "tensorflow:saved_model"),
        native_init="detcore_estimator.native_context:init",
        metric="loss",
        several_workers=True,
        requires=("tensorflow",),
        related=("tensorflow_estimator", "keras", "numpy", "horovod"),
        # TensorFlow's C++ code prints a page of notices at each start (oneDNN, CPU instructions).
        # This variable hides all but errors.
        variables=(("TF_CPP_MIN_LOG_LEVEL", "2"),),
        import_variables=("TF_", "KERAS_", "XLA_"),
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
