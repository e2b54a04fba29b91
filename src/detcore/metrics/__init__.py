"""Reduce metrics of several batches and workers to one value. Pure.

NumPy is imported on the first use of a reducer that computes with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_classes": "Accuracy ConfusionMatrix F1Score Precision Recall",
        "_ranking": "AUROC AveragePrecision Quantiles",
        "_regression": "MeanAbsoluteError MeanSquaredError RootMeanSquaredError",
        "_sums": "Count Mean Sum",
    },
)
