"""The client: experiments, trials, checkpoints and models from Python, and `create`.

`Determined` gives access to the records of this machine without a server, or to the records of a
server. Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.client.arguments import load_trial_config
    from detcore.client.class_location import find_class
    from detcore.client.client_checkpoint import Checkpoint, CheckpointTrainingMetadata
    from detcore.client.determined import Determined
    from detcore.client.documents import DOCUMENTS, Document
    from detcore.client.embedded_transport import EmbeddedTransport
    from detcore.client.experiment_creation import create, create_trial_instance
    from detcore.client.experiment_reference import ExperimentReference, TrialSortBy
    from detcore.client.metric_reports import TrainingMetrics, ValidationMetrics
    from detcore.client.registered_model import Model
    from detcore.client.transport import Transport
    from detcore.client.trial_reference import (
        CheckpointOrderBy,
        CheckpointSortBy,
        OrderBy,
        TrialOrderBy,
        TrialReference,
    )
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
    "load_trial_config",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "detcore.contract.values": "ModelOrderBy ModelSortBy",
        "arguments": "load_trial_config",
        "client_checkpoint": "Checkpoint CheckpointTrainingMetadata",
        "determined": "Determined",
        "experiment_creation": "create create_trial_instance",
        "embedded_transport": "EmbeddedTransport",
        "experiment_reference": "ExperimentReference TrialSortBy",
        "metric_reports": "TrainingMetrics ValidationMetrics",
        "registered_model": "Model",
        "documents": "DOCUMENTS Document",
        "transport": "Transport",
        "trial_reference": "CheckpointOrderBy CheckpointSortBy OrderBy TrialOrderBy TrialReference",
        "class_location": "find_class",
    },
)
