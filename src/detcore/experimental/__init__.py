"""Names that scripts of the earlier system import: the client, `create`, and the native forms.

`Determined` gives access to experiments, trials, checkpoints and models on the embedded store, with
no server to start. `detcore.experimental.keras.init` and `detcore.experimental.estimator.init` make
the contexts of scripts that train without a trial class; they need the framework's plugin when they
are called. Names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore.experimental import estimator, keras
    from detcore.experimental._checkpoint import Checkpoint, CheckpointTrainingMetadata
    from detcore.experimental._client import Determined
    from detcore.experimental._create import create
    from detcore.experimental._embedded import EmbeddedTransport
    from detcore.experimental._enums import (
        CheckpointOrderBy,
        CheckpointSortBy,
        ModelOrderBy,
        ModelSortBy,
        OrderBy,
        TrialOrderBy,
        TrialSortBy,
    )
    from detcore.experimental._experiment import ExperimentReference
    from detcore.experimental._http import open_remote_checkpoint
    from detcore.experimental._instance import create_trial_instance
    from detcore.experimental._metrics import TrainingMetrics, ValidationMetrics
    from detcore.experimental._model import Model
    from detcore.experimental._transport import Transport
    from detcore.experimental._trial import TrialReference

__all__ = [
    "Checkpoint",
    "CheckpointOrderBy",
    "CheckpointSortBy",
    "CheckpointTrainingMetadata",
    "Determined",
    "EmbeddedTransport",
    "ExperimentReference",
    "Model",
    "ModelOrderBy",
    "ModelSortBy",
    "OrderBy",
    "TrainingMetrics",
    "Transport",
    "TrialOrderBy",
    "TrialReference",
    "TrialSortBy",
    "ValidationMetrics",
    "create",
    "create_trial_instance",
    "estimator",
    "keras",
    "open_remote_checkpoint",
]

_HOMES = {
    "Checkpoint": "_checkpoint",
    "CheckpointOrderBy": "_enums",
    "CheckpointSortBy": "_enums",
    "CheckpointTrainingMetadata": "_checkpoint",
    "Determined": "_client",
    "EmbeddedTransport": "_embedded",
    "ExperimentReference": "_experiment",
    "Model": "_model",
    "ModelOrderBy": "_enums",
    "ModelSortBy": "_enums",
    "OrderBy": "_enums",
    "TrainingMetrics": "_metrics",
    "Transport": "_transport",
    "TrialOrderBy": "_enums",
    "TrialReference": "_trial",
    "TrialSortBy": "_enums",
    "ValidationMetrics": "_metrics",
    "create": "_create",
    "create_trial_instance": "_instance",
    "estimator": "",
    "keras": "",
    "open_remote_checkpoint": "_http",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore.experimental' has no attribute {name!r}")
    module = importlib.import_module(f"detcore.experimental.{home or name}")
    return getattr(module, name) if home else module


def __dir__() -> list[str]:
    return sorted(__all__)
