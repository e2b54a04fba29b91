"""detcore: a training job as a trial, the same on a laptop and under a search.

The names below are imported on first use, so that ``import detcore`` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from detcore.version import __version__

if TYPE_CHECKING:
    from detcore import client, core, errors, experimental
    from detcore.client import Determined as Client
    from detcore.contract.errors import DetcoreError, InvalidHP
    from detcore.plugins import hookimpl
    from detcore.trial import Trial, TrialContext

__all__ = [
    "Client",
    "DetcoreError",
    "InvalidHP",
    "Trial",
    "TrialContext",
    "__version__",
    "client",
    "core",
    "errors",
    "experimental",
    "hookimpl",
]

_HOMES = {
    "Client": "detcore.client",
    "DetcoreError": "detcore.contract.errors",
    "InvalidHP": "detcore.contract.errors",
    "Trial": "detcore.contract.trial",
    "TrialContext": "detcore.contract.trial",
    "client": "detcore.client",
    "core": "detcore.core",
    "errors": "detcore.errors",
    "experimental": "detcore.experimental",
    "hookimpl": "detcore.contract.hooks",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore' has no attribute {name!r}")
    module = importlib.import_module(home)
    if home == f"detcore.{name}":
        return module
    return getattr(module, "Determined" if name == "Client" else name)


def __dir__() -> list[str]:
    return sorted(__all__)
