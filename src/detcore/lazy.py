"""Let packages import their names on first use, so that finding a plugin is cheap."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and the ``__dir__`` of a package.

    For its ``__init__.py``, which lists the names in ``__all__`` and imports them under
    ``TYPE_CHECKING``::

        __getattr__, __dir__ = lazy_names(__name__, {"_storage": "TapeSettings TapeStorage"})

    Args:
        package: Its ``__name__``.
        homes: Names defined by each module of the package, separated by spaces. The empty module
            name lists modules. A key that starts with ``detcore.`` is a full module name.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def find_name(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            # With the module as `obj`, Python suggests the closest name.
            text = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=sys.modules[package])
        path = home if home.startswith("detcore.") else f"{package}.{home or name}"
        module = importlib.import_module(path)
        return getattr(module, name) if home else module

    return find_name, lambda: sorted(sys.modules[package].__all__)
