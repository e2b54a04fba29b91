"""Determined's name for `detcore.client`, and for the native forms of its frameworks.

The names of Determined's package are those of `detcore.client`. `keras.init` and `estimator.init`
create the contexts of scripts that train without a trial class. Calling them requires the
framework's plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.client import (
        Checkpoint,
        CheckpointOrderBy,
        CheckpointSortBy,
        Determined,
        ExperimentReference,
        Model,
        ModelOrderBy,
        ModelSortBy,
        OrderBy,
        TrainingMetrics,
        TrialOrderBy,
        TrialReference,
        TrialSortBy,
        ValidationMetrics,
        create,
        create_trial_instance,
    )
    from detcore.experimental import estimator, keras

__all__ = [
    "Checkpoint",
    "CheckpointOrderBy",
    "CheckpointSortBy",
    "Determined",
    "ExperimentReference",
    "Model",
    "ModelOrderBy",
    "ModelSortBy",
    "OrderBy",
    "TrainingMetrics",
    "TrialOrderBy",
    "TrialReference",
    "TrialSortBy",
    "ValidationMetrics",
    "create",
    "create_trial_instance",
    "estimator",
    "keras",
]

__getattr__, __dir__ = lazy_names(
    __name__, {"detcore.client": " ".join(__all__), "": "estimator keras"}
)
