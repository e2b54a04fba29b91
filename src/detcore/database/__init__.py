"""Where records live: experiments, trials, metrics, checkpoints."""

from detcore.database._database import Database
from detcore.database._drainer import SpoolDrainer
from detcore.database._ingest import ingest_spools
from detcore.database._process import ProcessIdentity
from detcore.database._records import (
    CheckpointRecord,
    EventRecord,
    ExperimentRecord,
    MetricRecord,
    RunRecord,
    TrialRecord,
)
from detcore.database._spool import Spool

__all__ = [
    "CheckpointRecord",
    "Database",
    "EventRecord",
    "ExperimentRecord",
    "MetricRecord",
    "ProcessIdentity",
    "RunRecord",
    "Spool",
    "SpoolDrainer",
    "TrialRecord",
    "ingest_spools",
]
