"""Train scikit-learn estimators batch by batch in detcore trials.

Names are imported on first use, so that plugin discovery stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_sklearn.checkpoint import load_model
    from detcore_sklearn.controller import SklearnController
    from detcore_sklearn.estimators import ESTIMATORS
    from detcore_sklearn.trial import Data, SklearnTrial

__version__ = "0.1.0"

__all__ = ["ESTIMATORS", "Data", "SklearnController", "SklearnTrial", "load_model"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "checkpoint": "load_model",
        "controller": "SklearnController",
        "estimators": "ESTIMATORS",
        "trial": "Data SklearnTrial",
    },
)
