"""Forward to `detcore_determined.migrate`, which the distribution detcore-determined contains."""

from __future__ import annotations

from detcore._distributions import import_distribution

__all__ = ()


def __getattr__(name: str) -> object:
    if name.startswith("__"):  # the import system looks for __path__
        raise AttributeError(f"module 'detcore.migrate' has no attribute {name!r}")
    module = import_distribution("detcore_determined.migrate", needed_by="detcore.migrate")
    found: object = getattr(module, name)
    return found
