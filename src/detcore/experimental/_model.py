"""Forwards to `detcore_registry`, which the distribution detcore-registry contains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore._distributions import forward_to

if TYPE_CHECKING:
    from detcore_registry import Model as Model
    from detcore_registry import ModelQuery as ModelQuery
    from detcore_registry import ModelTransport as ModelTransport
    from detcore_registry import VersionTexts as VersionTexts

__getattr__ = forward_to(
    "detcore_registry", old="detcore.experimental", needed_by="the model registry"
)
