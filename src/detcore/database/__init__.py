"""Where records live: experiments, trials, metrics, checkpoints."""

from detcore.database._database import Database
from detcore.database._drainer import SpoolDrainer
from detcore.database._ingest import ingest_spools
from detcore.database._models import ModelOrderBy, ModelSortBy
from detcore.database._process import ProcessIdentity
from detcore.database._ranking import RankedCheckpoint, RankedTrial
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
from detcore.database._searches import TrialDraft, TrialTarget
from detcore.database._secrets import RestoredConfig, keep_secrets, restore_secrets
from detcore.database._spool import Spool
from detcore.database._summaries import TrialSummary
from detcore.database._trial_log import LogLine, TrialLog, read_log_page, read_trial_log

__all__ = [
    "CheckpointRecord",
    "Database",
    "EventRecord",
    "ExperimentRecord",
    "LogLine",
    "MetricRecord",
    "ModelOrderBy",
    "ModelRecord",
    "ModelSortBy",
    "ModelVersionRecord",
    "ProcessIdentity",
    "RankedCheckpoint",
    "RankedTrial",
    "RestoredConfig",
    "RunRecord",
    "Spool",
    "SpoolDrainer",
    "TrialDraft",
    "TrialLog",
    "TrialRecord",
    "TrialSummary",
    "TrialTarget",
    "ingest_spools",
    "keep_secrets",
    "read_log_page",
    "read_trial_log",
    "restore_secrets",
]
