"""Hook implementations; Optuna is imported when a search starts."""

from __future__ import annotations

from detcore.plugins import SearcherType, hookimpl

__all__ = ["detcore_register_searcher"]


@hookimpl
def detcore_register_searcher() -> SearcherType:
    """Register ``searcher: {name: optuna}``."""
    return SearcherType(
        name="optuna",
        method="detcore_optuna.optuna_search:OptunaSearch",
        settings="detcore_optuna.optuna_search:OptunaSettings",
    )
