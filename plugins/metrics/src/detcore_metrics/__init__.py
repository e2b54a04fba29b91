"""Reducers for the usual metrics, the same to the last bit however records are split.

NumPy is imported on the first use of a reducer.
"""

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_metrics._classes import Accuracy, ConfusionMatrix, F1Score, Precision, Recall
    from detcore_metrics._ranking import AUROC, AveragePrecision, Quantiles
    from detcore_metrics._sums import (
        Count,
        Mean,
        MeanAbsoluteError,
        MeanSquaredError,
        RootMeanSquaredError,
        Sum,
    )

__version__ = "0.1.0"

__all__ = [
    "AUROC",
    "Accuracy",
    "AveragePrecision",
    "ConfusionMatrix",
    "Count",
    "F1Score",
    "Mean",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "Precision",
    "Quantiles",
    "Recall",
    "RootMeanSquaredError",
    "Sum",
    "__version__",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_classes": "Accuracy ConfusionMatrix F1Score Precision Recall",
        "_ranking": "AUROC AveragePrecision Quantiles",
        "_sums": "Count Mean MeanAbsoluteError MeanSquaredError RootMeanSquaredError Sum",
    },
)
