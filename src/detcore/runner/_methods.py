"""Makes the search method of an experiment from its searcher section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detcore.errors import DetcoreError, RunError, SearchError
from detcore.search import SearchMethod, SearchSetup
from detcore.trial import import_object

if TYPE_CHECKING:
    from detcore.hooks import PluginManager

__all__ = ["make_method"]

_METHODS = ("start", "validated", "exited", "progress")
# Accepted in experiment files, for they are documented; nothing here carries them out.
_NOT_HERE = {
    "custom": "register the class by the hook detcore_register_searcher, and use its name",
    "pbt": "adaptive_asha and optuna also spend most of the time on the best trials",
}


def make_method(plain: Mapping[str, Any], plugins: PluginManager) -> SearchMethod:
    """Make the search method of an experiment, new.

    Args:
        plain: The experiment's configuration.
        plugins: Provide search methods.

    Raises:
        RunError: If no search method has that name.
        SearchError: If its class is no search method, or cannot be made from these settings.
    """
    settings = plain["searcher"]
    name = settings["name"]
    types = plugins.searchers()
    if name not in types:
        hint = _NOT_HERE.get(name, "other search methods come with plugins: detcore plugins list")
        raise RunError(
            f"searcher.name is {name!r}, and nothing installed carries that out.\n"
            f"Search methods here: {', '.join(sorted(types))}.\n{hint[0].upper()}{hint[1:]}."
        )
    target = types[name].method
    what = f"the search method {name!r} ({target})"
    try:
        made = import_object(target)
    except (ImportError, AttributeError) as error:
        raise SearchError(f"{what} cannot be imported: {error}") from error
    setup = SearchSetup(
        settings=settings,
        hyperparameters=plain["hyperparameters"],
        seed=plain["reproducibility"]["experiment_seed"],
        max_length=_count(settings.get("max_length")),
    )
    try:
        method: SearchMethod = made(setup)
    except DetcoreError:
        raise
    except Exception as error:
        raise SearchError(
            f"{what} cannot be made: {type(error).__name__}: {error}.\n"
            "It is called with a SearchSetup, and returns an object with the methods "
            f"{', '.join(_METHODS)}."
        ) from error
    missing = [each for each in _METHODS if not callable(getattr(method, each, None))]
    if missing:
        raise SearchError(
            f"{what} has no {' and no '.join(missing)}.\n"
            f"A search method has the methods {', '.join(_METHODS)}: "
            "see detcore.search.SearchMethod."
        )
    return method


def _count(length: object) -> int:
    """Return a length without its unit; 0 if no length is given."""
    if isinstance(length, Mapping):
        (length,) = length.values()
    return length if isinstance(length, int) else 0
