"""Train Estimators with detcore: `EstimatorTrial`, with ``tf.estimator`` or without it.

The names below are imported on first use: importing this package imports no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.metrics import MetricReducer
    from detcore_estimator import export
    from detcore_estimator._context import (
        EstimatorContext,
        EstimatorExperimentalContext,
        EstimatorTrialContext,
    )
    from detcore_estimator._engine._estimator import Estimator
    from detcore_estimator._errors import NanLossDuringTrainingError
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

_HOMES = {
    "BestExporter": "detcore_estimator._exporters",
    "Estimator": "detcore_estimator._engine._estimator",
    "EstimatorContext": "detcore_estimator._context",
    "EstimatorExperimentalContext": "detcore_estimator._context",
    "EstimatorNativeContext": "detcore_estimator._native",
    "EstimatorSpec": "detcore_estimator._spec",
    "EstimatorTrial": "detcore_estimator._trial",
    "EstimatorTrialContext": "detcore_estimator._context",
    "EvalSpec": "detcore_estimator._run_specs",
    "Exporter": "detcore_estimator._exporters",
    "FinalExporter": "detcore_estimator._exporters",
    "LatestExporter": "detcore_estimator._exporters",
    "MetricReducer": "detcore.metrics",
    "ModeKeys": "detcore_estimator._spec",
    "NanLossDuringTrainingError": "detcore_estimator._errors",
    "RunConfig": "detcore_estimator._run_config",
    "RunHook": "detcore_estimator._hooks",
    "TrainSpec": "detcore_estimator._run_specs",
    "WarmStartSettings": "detcore_estimator._run_specs",
    "export": "detcore_estimator.export",
    "init": "detcore_estimator._native",
    "load_estimator_from_checkpoint_path": "detcore_estimator._load",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore_estimator' has no attribute {name!r}")
    module = importlib.import_module(home)
    return module if home == f"detcore_estimator.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
