"""Where records live: experiments, trials, metrics, checkpoints."""

from detcore._records import (
    CheckpointRecord,
    EventRecord,
    ExperimentRecord,
    LogLine,
    MetricRecord,
    ModelRecord,
    ModelVersionRecord,
    ProcessIdentity,
    RunRecord,
    TrialRecord,
    read_row,
)
from detcore.contract.values import ModelOrderBy, ModelSortBy
from detcore.database._backup import (
    DatabaseInfo,
    back_up,
    describe_database,
    put_back,
)
from detcore.database._curves import MetricCurve
from detcore.database._database import Database
from detcore.database._drain import Position, SpoolLines
from detcore.database._experiments import note_last_id
from detcore.database._follower import LogFollower, ingest_reports, ingest_spools
from detcore.database._patience import DatabaseAway, Patience
from detcore.database._queries import checked_metadata, checked_texts, unused_id
from detcore.database._questions import answer_question
from detcore.database._ranking import RankedCheckpoint, RankedTrial
from detcore.database._retention import RetentionPlan, RetentionPolicy, plan_retention
from detcore.database._schema import metadata
from detcore.database._searches import TrialDraft, TrialTarget
from detcore.database._secrets import hide_secrets, keep_secrets, restore_secrets
from detcore.database._summaries import TrialSummary
from detcore.database._text import PlainText
from detcore.database._trial_log import LineFile, TrialLog, read_log_page, read_trial_log

__all__ = [
    "CheckpointRecord",
    "Database",
    "DatabaseAway",
    "DatabaseInfo",
    "EventRecord",
    "ExperimentRecord",
    "LineFile",
    "LogFollower",
    "LogLine",
    "MetricCurve",
    "MetricRecord",
    "ModelOrderBy",
    "ModelRecord",
    "ModelSortBy",
    "ModelVersionRecord",
    "Patience",
    "PlainText",
    "Position",
    "ProcessIdentity",
    "RankedCheckpoint",
    "RankedTrial",
    "RetentionPlan",
    "RetentionPolicy",
    "RunRecord",
    "SpoolLines",
    "TrialDraft",
    "TrialLog",
    "TrialRecord",
    "TrialSummary",
    "TrialTarget",
    "answer_question",
    "back_up",
    "checked_metadata",
    "checked_texts",
    "describe_database",
    "hide_secrets",
    "ingest_reports",
    "ingest_spools",
    "keep_secrets",
    "metadata",
    "note_last_id",
    "plan_retention",
    "put_back",
    "read_log_page",
    "read_row",
    "read_trial_log",
    "restore_secrets",
    "unused_id",
]
