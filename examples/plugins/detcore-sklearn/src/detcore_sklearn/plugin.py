"""Hook implementations. This module imports no framework."""

from __future__ import annotations

from detcore import hookimpl
from detcore.types import Framework

__all__ = ["detcore_register_framework"]


@hookimpl
def detcore_register_framework() -> Framework:
    """Register scikit-learn."""
    return Framework(
        name="sklearn",
        trial_class="detcore_sklearn:SklearnTrial",
        context_class="detcore:TrialContext",
        controller="detcore_sklearn:SklearnController",
        load_checkpoint="detcore_sklearn:load_model",
        # `partial_fit` exposes no gradients that workers could exchange.
        several_workers=False,
        requires=("sklearn",),
        related=("numpy",),
        install_hint="pip install scikit-learn",
    )
