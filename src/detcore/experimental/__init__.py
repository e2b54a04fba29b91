"""Names that scripts of the earlier system import: the client, `create`, and the native forms.

`Determined` gives access to experiments, trials, checkpoints and models on the embedded store, with
no server to start. `detcore.experimental.keras.init` and `detcore.experimental.estimator.init` make
the contexts of scripts that train without a trial class; they need the framework's plugin when they
are called. Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.contract.values import ModelOrderBy, ModelSortBy
    from detcore.experimental import estimator, keras
    from detcore.experimental._arguments import load_given
    from detcore.experimental._checkpoint import Checkpoint, CheckpointTrainingMetadata
    from detcore.experimental._client import Determined
    from detcore.experimental._create import create, create_trial_instance
    from detcore.experimental._documents import DOCUMENTS, Document
    from detcore.experimental._embedded import EmbeddedTransport
    from detcore.experimental._experiment import ExperimentReference, TrialSortBy
    from detcore.experimental._metrics import TrainingMetrics, ValidationMetrics
    from detcore.experimental._model import Model
    from detcore.experimental._transport import Transport
    from detcore.experimental._trial import (
        CheckpointOrderBy,
        CheckpointSortBy,
        OrderBy,
        TrialOrderBy,
        TrialReference,
    )
    from detcore.experimental._where import find_class

__all__ = [
    "DOCUMENTS",
    "Checkpoint",
    "CheckpointOrderBy",
    "CheckpointSortBy",
    "CheckpointTrainingMetadata",
    "Determined",
    "Document",
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
    "find_class",
    "keras",
    "load_given",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "": "estimator keras",
        "detcore.contract.values": "ModelOrderBy ModelSortBy",
        "_arguments": "load_given",
        "_checkpoint": "Checkpoint CheckpointTrainingMetadata",
        "_client": "Determined",
        "_create": "create create_trial_instance",
        "_embedded": "EmbeddedTransport",
        "_experiment": "ExperimentReference TrialSortBy",
        "_metrics": "TrainingMetrics ValidationMetrics",
        "_model": "Model",
        "_documents": "DOCUMENTS Document",
        "_transport": "Transport",
        "_trial": "CheckpointOrderBy CheckpointSortBy OrderBy TrialOrderBy TrialReference",
        "_where": "find_class",
    },
)
