"""The record store: experiments, trials, metrics, checkpoints and models in a database."""

from detcore.records.connections import DatabaseUnavailableError, mask_url
from detcore.records.curve_queries import MetricCurve
from detcore.records.database import Database
from detcore.records.engine import list_revisions, make_engine
from detcore.records.experiment_queries import SERVER_QUEUE, replace_labels
from detcore.records.kept_secrets import hide_secrets, restore_secrets, save_secrets
from detcore.records.log_follower import LogFollower, ingest_event_logs, ingest_reports
from detcore.records.output_log import LineFile, OutputLog, read_output_log
from detcore.records.queries import check_strings
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
    RunRecord,
    TrialRecord,
    list_resumes,
)
from detcore.records.retention import RetentionPlan, RetentionPolicy, plan_retention
from detcore.records.runner_lock import Runner, RunnerLock
from detcore.records.schema import metadata
from detcore.records.search_queries import TrialDraft, TrialTarget
from detcore.records.worker_questions import answer_question

__all__ = [
    "SERVER_QUEUE",
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
    "RankedCheckpoint",
    "RankedTrial",
    "RetentionPlan",
    "RetentionPolicy",
    "RunRecord",
    "Runner",
    "RunnerLock",
    "TrialDraft",
    "TrialRecord",
    "TrialSummary",
    "TrialTarget",
    "answer_question",
    "check_strings",
    "hide_secrets",
    "ingest_event_logs",
    "ingest_reports",
    "list_resumes",
    "list_revisions",
    "make_engine",
    "mask_url",
    "metadata",
    "plan_retention",
    "read_output_log",
    "replace_labels",
    "restore_secrets",
    "save_secrets",
]
