"""Where records live: experiments, trials, metrics, checkpoints."""

from detcore.database._database import Database
from detcore.database._drainer import SpoolDrainer
from detcore.database._ingest import ingest_spools
from detcore.database._models import ModelOrderBy, ModelSortBy
from detcore.database._process import ProcessIdentity
from detcore.database._records import (
    CheckpointRecord,
    EventRecord,
    ExperimentRecord,
    MetricRecord,
    ModelRecord,
    ModelVersionRecord,
    RunRecord,
    TrialRecord,
)
from detcore.database._secrets import RestoredConfig, keep_secrets, restore_secrets
from detcore.database._spool import Spool

__all__ = [
    "CheckpointRecord",
    "Database",
    "EventRecord",
    "ExperimentRecord",
    "MetricRecord",
    "ModelOrderBy",
    "ModelRecord",
    "ModelSortBy",
    "ModelVersionRecord",
    "ProcessIdentity",
    "RestoredConfig",
    "RunRecord",
    "Spool",
    "SpoolDrainer",
    "TrialRecord",
    "ingest_spools",
    "keep_secrets",
    "restore_secrets",
]
