"""Reduce metrics of several batches and workers to one value.

The reducers give the same value to the last bit however records are split. Names are imported on
first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.contract.metrics import MetricReducer
    from detcore.metrics._classes import Accuracy, ConfusionMatrix, F1Score, Precision, Recall
    from detcore.metrics._combine import FunctionReducer, interleave, weighted_mean
    from detcore.metrics._ranking import AUROC, AveragePrecision, Quantiles
    from detcore.metrics._sums import (
        Count,
        Mean,
        MeanAbsoluteError,
        MeanSquaredError,
        RootMeanSquaredError,
        Sum,
    )

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
        "_combine": "FunctionReducer interleave weighted_mean",
        "_ranking": "AUROC AveragePrecision Quantiles",
        "_sums": "Count Mean MeanAbsoluteError MeanSquaredError RootMeanSquaredError Sum",
        "detcore.contract.metrics": "MetricReducer",
    },
)
