"""Trials for detcore that train scikit-learn's estimators batch by batch, with ``partial_fit``.

Names are imported on first use: finding the plugin must not cost what using it costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_sklearn._checkpoint import load_model
    from detcore_sklearn._controller import SklearnController
    from detcore_sklearn._estimators import ESTIMATORS
    from detcore_sklearn._trial import Data, SklearnTrial

__version__ = "0.1.0"

__all__ = ["ESTIMATORS", "Data", "SklearnController", "SklearnTrial", "load_model"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_checkpoint": "load_model",
        "_controller": "SklearnController",
        "_estimators": "ESTIMATORS",
        "_trial": "Data SklearnTrial",
    },
)
