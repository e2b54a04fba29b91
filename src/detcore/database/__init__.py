"""Where records live: experiments, trials, metrics, checkpoints."""

from detcore.database._connections import DatabaseUnavailableError, shown_url
from detcore.database._curves import MetricCurve
from detcore.database._database import Database
from detcore.database._engine import make_engine, revisions
from detcore.database._experiments import replace_labels
from detcore.database._follower import LogFollower, ingest_event_logs, ingest_reports
from detcore.database._output_log import LineFile, OutputLog, read_output_log
from detcore.database._process import identify_process
from detcore.database._queries import checked_texts
from detcore.database._questions import answer_question
from detcore.database._ranking import RankedCheckpoint, RankedTrial, TrialSummary
from detcore.database._records import (
    CheckpointRecord,
    EventRecord,
    ExperimentRecord,
    LogLine,
    MetricRecord,
    ModelRecord,
    ModelVersionRecord,
    ObserverCursor,
    ProcessIdentity,
    RunRecord,
    TrialRecord,
)
from detcore.database._retention import RetentionPlan, RetentionPolicy, plan_retention
from detcore.database._schema import metadata
from detcore.database._searches import TrialDraft, TrialTarget
from detcore.database._secrets import hide_secrets, keep_secrets, restore_secrets

__all__ = [
    "CheckpointRecord",
    "Database",
    "DatabaseUnavailableError",
    "EventRecord",
    "ExperimentRecord",
    "LineFile",
    "LogFollower",
    "LogLine",
    "MetricCurve",
    "MetricRecord",
    "ModelRecord",
    "ModelVersionRecord",
    "ObserverCursor",
    "OutputLog",
    "ProcessIdentity",
    "RankedCheckpoint",
    "RankedTrial",
    "RetentionPlan",
    "RetentionPolicy",
    "RunRecord",
    "TrialDraft",
    "TrialRecord",
    "TrialSummary",
    "TrialTarget",
    "answer_question",
    "checked_texts",
    "hide_secrets",
    "identify_process",
    "ingest_event_logs",
    "ingest_reports",
    "keep_secrets",
    "make_engine",
    "metadata",
    "plan_retention",
    "read_output_log",
    "replace_labels",
    "restore_secrets",
    "revisions",
    "shown_url",
]
