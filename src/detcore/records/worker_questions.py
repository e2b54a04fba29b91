"""Answers to workers' questions about records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detcore.contract.errors import DatabaseError, NotFoundError
from detcore.records.database import Database
from detcore.records.log_follower import ingest_event_logs

_UNSETTLED = ("ACTIVE", "DELETING", "PARTIALLY_DELETED")


def answer_question(
    database: Database, home: Path, trial_id: int, question: str, fields: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Answer a question of a trial's worker, which cannot see the records.

    Args:
        database: The records.
        home: Where the trial's log is; it is taken in first where the answer depends on it.
        trial_id: The trial that asks.
        question: ``"best_of_others"``: the best value of a validation metric over the other trials
            of its experiment. ``"checkpoint"``: the state of a checkpoint.
            ``"unfinished_checkpoints"``: those of the trial in one storage that a killed process
            left.
        fields: Arguments of the question.

    Returns:
        JSON values. None: the records cannot be read now, or the question is not known.
    """
    try:
        if question == "best_of_others":
            value = database.get_best_value_of_others(
                trial_id,
                str(fields["metric"]),
                smaller_is_better=bool(fields["smaller_is_better"]),
            )
            return {"value": value}
        if question == "checkpoint":
            ingest_event_logs(database, home, trial_id=trial_id)
            return _describe_checkpoint(database, str(fields["uuid"]))
        if question == "unfinished_checkpoints":
            url = fields["storage_url"]
            return {
                "checkpoints": [
                    {
                        "uuid": record.uuid,
                        "state": record.state,
                        "resources": dict(record.resources),
                    }
                    for record in database.list_checkpoints(trial_id=trial_id, states=_UNSETTLED)
                    if record.storage_url == url
                ]
            }
    except DatabaseError:
        return None
    return None


def _describe_checkpoint(database: Database, uuid: str) -> Mapping[str, Any]:
    try:
        record = database.get_checkpoint(uuid)
    except NotFoundError:
        return {"state": None}
    if record.uuid != uuid:
        return {"state": None}
    return {
        "state": record.state,
        "trial_id": record.trial_id,
        "models": database.list_registered_checkpoints().get(uuid, []),
    }
