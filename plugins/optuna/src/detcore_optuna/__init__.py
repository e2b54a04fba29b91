"""The search method `optuna`: any sampler and pruner of Optuna."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_optuna._search import OptunaSearch

__version__ = "0.1.0"

__all__ = ["OptunaSearch", "__version__"]

__getattr__, __dir__ = lazy_names(__name__, {"_search": "OptunaSearch"})
