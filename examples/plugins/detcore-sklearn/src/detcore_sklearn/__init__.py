"""Trials for detcore that train scikit-learn's estimators batch by batch, with ``partial_fit``.

Names are imported on first use: finding the plugin must not cost what using it costs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore_sklearn._checkpoint import load_model
    from detcore_sklearn._controller import SklearnController
    from detcore_sklearn._estimators import ESTIMATORS
    from detcore_sklearn._trial import Data, SklearnTrial

__version__ = "0.1.0"

__all__ = ["ESTIMATORS", "Data", "SklearnController", "SklearnTrial", "load_model"]

_HOMES = {
    "ESTIMATORS": "_estimators",
    "Data": "_trial",
    "SklearnController": "_controller",
    "SklearnTrial": "_trial",
    "load_model": "_checkpoint",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore_sklearn' has no attribute {name!r}")
    return getattr(importlib.import_module(f"detcore_sklearn.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
