"""Train Estimators with detcore: `EstimatorTrial`, with ``tf.estimator`` or without it.

The names below are imported on first use: importing this package imports no TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.metrics import MetricReducer
    from detcore_estimator import export
    from detcore_estimator._context import (
        EstimatorContext,
        EstimatorExperimentalContext,
        EstimatorTrialContext,
    )
    from detcore_estimator._engine._estimator import Estimator
    from detcore_estimator._engine._train import NanLossDuringTrainingError
    from detcore_estimator._exporters import BestExporter, Exporter, FinalExporter, LatestExporter
    from detcore_estimator._hooks import RunHook
    from detcore_estimator._load import load_estimator_from_checkpoint_path
    from detcore_estimator._native import EstimatorNativeContext, init
    from detcore_estimator._run_config import RunConfig
    from detcore_estimator._run_specs import EvalSpec, TrainSpec, WarmStartSettings
    from detcore_estimator._spec import EstimatorSpec, ModeKeys
    from detcore_estimator._trial import EstimatorTrial

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
        "_context": "EstimatorContext EstimatorExperimentalContext EstimatorTrialContext",
        "_engine._estimator": "Estimator",
        "_engine._train": "NanLossDuringTrainingError",
        "_exporters": "BestExporter Exporter FinalExporter LatestExporter",
        "_hooks": "RunHook",
        "_load": "load_estimator_from_checkpoint_path",
        "_native": "EstimatorNativeContext init",
        "_run_config": "RunConfig",
        "_run_specs": "EvalSpec TrainSpec WarmStartSettings",
        "_spec": "EstimatorSpec ModeKeys",
        "_trial": "EstimatorTrial",
        "detcore.metrics": "MetricReducer",
    },
)
