"""The client: experiments, trials, checkpoints and models from Python, and `create`.

`Determined` gives access to the records of this machine, with no server to start, or to those of a
server. Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.client._arguments import load_given
    from detcore.client._checkpoint import Checkpoint, CheckpointTrainingMetadata
    from detcore.client._client import Determined
    from detcore.client._create import create, create_trial_instance
    from detcore.client._documents import DOCUMENTS, Document
    from detcore.client._embedded import EmbeddedTransport
    from detcore.client._experiment import ExperimentReference, TrialSortBy
    from detcore.client._metrics import TrainingMetrics, ValidationMetrics
    from detcore.client._model import Model
    from detcore.client._transport import Transport
    from detcore.client._trial import (
        CheckpointOrderBy,
        CheckpointSortBy,
        OrderBy,
        TrialOrderBy,
        TrialReference,
    )
    from detcore.client._where import find_class
    from detcore.contract.values import ModelOrderBy, ModelSortBy

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
    "find_class",
    "load_given",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
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
