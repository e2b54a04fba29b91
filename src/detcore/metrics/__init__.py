"""Reduce metrics of several batches and workers to one value.

The reducers give the same value to the last bit however records are split. Names are imported on
first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.contract.metrics import MetricReducer
    from detcore.metrics.classification_metrics import (
        Accuracy,
        ConfusionMatrix,
        F1Score,
        Precision,
        Recall,
    )
    from detcore.metrics.combine import FunctionReducer, interleave, weighted_mean
    from detcore.metrics.ranking_metrics import AUROC, AveragePrecision, Quantiles
    from detcore.metrics.sum_metrics import (
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
        "classification_metrics": "Accuracy ConfusionMatrix F1Score Precision Recall",
        "combine": "FunctionReducer interleave weighted_mean",
        "ranking_metrics": "AUROC AveragePrecision Quantiles",
        "sum_metrics": "Count Mean MeanAbsoluteError MeanSquaredError RootMeanSquaredError Sum",
        "detcore.contract.metrics": "MetricReducer",
    },
)
