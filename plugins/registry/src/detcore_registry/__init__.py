"""The model registry: named models, and checkpoints as their numbered versions.

Names are imported on first use: finding the plugin must not cost what using it costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_registry._database import RegistryDatabase
    from detcore_registry._model import Model
    from detcore_registry._transport import (
        ModelQuery,
        ModelTransport,
        VersionTexts,
        models_of,
    )

__version__ = "0.1.0"

__all__ = [
    "Model",
    "ModelQuery",
    "ModelTransport",
    "RegistryDatabase",
    "VersionTexts",
    "__version__",
    "models_of",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_database": "RegistryDatabase",
        "_model": "Model",
        "_transport": "ModelQuery ModelTransport VersionTexts models_of",
    },
)
