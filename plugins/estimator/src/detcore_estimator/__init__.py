"""Train Estimators with detcore: `EstimatorTrial`, with ``tf.estimator`` or without it.

The names below are imported on first use. Importing this package does not import TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.metrics import MetricReducer
    from detcore_estimator import export
    from detcore_estimator.engine.estimator import Estimator
    from detcore_estimator.engine.train_loop import NanLossDuringTrainingError
    from detcore_estimator.estimator_context import (
        EstimatorContext,
        EstimatorExperimentalContext,
        EstimatorTrialContext,
    )
    from detcore_estimator.estimator_trial import EstimatorTrial
    from detcore_estimator.exporters.model_exporters import (
        BestExporter,
        Exporter,
        FinalExporter,
        LatestExporter,
    )
    from detcore_estimator.load_checkpoint import load_estimator_from_checkpoint_path
    from detcore_estimator.native_context import EstimatorNativeContext, init
    from detcore_estimator.run_hook import RunHook
    from detcore_estimator.specs.estimator_spec import EstimatorSpec, ModeKeys
    from detcore_estimator.specs.run_config import RunConfig
    from detcore_estimator.specs.run_specs import EvalSpec, TrainSpec, WarmStartSettings

__version__ = "0.1.0"

__all__ = [
    "BestExporter",
    "Estimator",
    "EstimatorContext",
    "EstimatorExperimentalContext",
    "EstimatorNativeContext",
    "EstimatorSpec",
    "EstimatorTrial",
    "EstimatorTrialContext",
    "EvalSpec",
    "Exporter",
    "FinalExporter",
    "LatestExporter",
    "MetricReducer",
    "ModeKeys",
    "NanLossDuringTrainingError",
    "RunConfig",
    "RunHook",
    "TrainSpec",
    "WarmStartSettings",
    "__version__",
    "export",
    "init",
    "load_estimator_from_checkpoint_path",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "": "export",
        "detcore.metrics": "MetricReducer",
        "engine.estimator": "Estimator",
        "engine.train_loop": "NanLossDuringTrainingError",
        "estimator_context": "EstimatorContext EstimatorExperimentalContext EstimatorTrialContext",
        "estimator_trial": "EstimatorTrial",
        "exporters.model_exporters": "BestExporter Exporter FinalExporter LatestExporter",
        "load_checkpoint": "load_estimator_from_checkpoint_path",
        "native_context": "EstimatorNativeContext init",
        "run_hook": "RunHook",
        "specs.estimator_spec": "EstimatorSpec ModeKeys",
        "specs.run_config": "RunConfig",
        "specs.run_specs": "EvalSpec TrainSpec WarmStartSettings",
    },
)
