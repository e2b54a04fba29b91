"""Tables of pandas, where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from detcore.errors import PluginNotFoundError

__all__ = ["flat", "frame"]


def frame(rows: Sequence[Mapping[str, Any]], *, index: tuple[str, Sequence[int]]) -> Any:
    """Return a table.

    Args:
        rows: Values by column; those that a row lacks become NaN.
        index: Name and values of the index.

    Raises:
        PluginNotFoundError: If pandas is not installed.
    """
    try:
        pandas: Any = importlib.import_module("pandas")
    except ModuleNotFoundError as error:
        raise PluginNotFoundError(
            "a table needs pandas, which is not installed in this environment.\n"
            "  pip install pandas"
        ) from error
    name, values = index
    return pandas.DataFrame(list(rows), index=pandas.Index(list(values), name=name, dtype="int64"))


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by names such as ``a.b``."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
