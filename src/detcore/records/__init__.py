"""Where records live: experiments, trials, metrics, checkpoints."""

from detcore.records.connections import DatabaseUnavailableError, shown_url
from detcore.records.curve_queries import MetricCurve
from detcore.records.database import Database
from detcore.records.engine import make_engine, revisions
from detcore.records.experiment_queries import replace_labels
from detcore.records.kept_secrets import hide_secrets, keep_secrets, restore_secrets
from detcore.records.log_follower import LogFollower, ingest_event_logs, ingest_reports
from detcore.records.output_log import LineFile, OutputLog, read_output_log
from detcore.records.process_identity import identify_process
from detcore.records.queries import checked_texts
from detcore.records.ranking_queries import RankedCheckpoint, RankedTrial, TrialSummary
from detcore.records.record_classes import (
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
from detcore.records.retention import RetentionPlan, RetentionPolicy, plan_retention
from detcore.records.schema import metadata
from detcore.records.search_queries import TrialDraft, TrialTarget
from detcore.records.worker_questions import answer_question

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
