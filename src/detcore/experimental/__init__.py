"""Names under which the earlier system offered its native form.

`detcore.experimental.estimator` is imported on first use, and needs a plugin when it is called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.experimental import estimator

__all__ = ["estimator"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'detcore.experimental' has no attribute {name!r}")
    return importlib.import_module(f"detcore.experimental.{name}")


def __dir__() -> list[str]:
    return sorted(__all__)
