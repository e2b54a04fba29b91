"""Reduce metrics of several batches and workers to one value. Pure.

NumPy is imported on the first use of a reducer that computes with it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from detcore.metrics._merge import weighted_mean
from detcore.metrics._reducer import FunctionReducer, MetricReducer, interleave

if TYPE_CHECKING:
    from detcore.metrics._classes import Accuracy, ConfusionMatrix, F1Score, Precision, Recall
    from detcore.metrics._ranking import AUROC, AveragePrecision, Quantiles
    from detcore.metrics._regression import (
        MeanAbsoluteError,
        MeanSquaredError,
        RootMeanSquaredError,
    )
    from detcore.metrics._sums import Count, Mean, Sum

__all__ = [
    "AUROC",
    "Accuracy",
    "AveragePrecision",
    "ConfusionMatrix",
    "Count",
    "F1Score",
    "FunctionReducer",
    "Mean",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "MetricReducer",
    "Precision",
    "Quantiles",
    "Recall",
    "RootMeanSquaredError",
    "Sum",
    "interleave",
    "weighted_mean",
]

_HOMES = {
    "AUROC": "_ranking",
    "Accuracy": "_classes",
    "AveragePrecision": "_ranking",
    "ConfusionMatrix": "_classes",
    "Count": "_sums",
    "F1Score": "_classes",
    "Mean": "_sums",
    "MeanAbsoluteError": "_regression",
    "MeanSquaredError": "_regression",
    "Precision": "_classes",
    "Quantiles": "_ranking",
    "Recall": "_classes",
    "RootMeanSquaredError": "_regression",
    "Sum": "_sums",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore.metrics' has no attribute {name!r}")
    return getattr(importlib.import_module(f"detcore.metrics.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
