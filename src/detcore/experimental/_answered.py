"""Checks of a server's answers before use: the server may be another program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detcore.remote import ServerRefused, unspell_document, unspell_metrics

if TYPE_CHECKING:
    from detcore.experimental._transport import Document

__all__ = ["PARTS", "checked", "checked_list"]

PARTS = 1000
"""Entries that a server answers at most."""

_NONE = type(None)
_TEXT, _WHOLE, _FLAG, _TABLE, _LIST = (str,), (int,), (bool,), (dict,), (list,)
_MAYBE_TEXT, _NUMBER = (str, _NONE), (int, float)
_CHECKPOINT = {
    "uuid": _TEXT, "experiment_id": _WHOLE, "trial_id": _WHOLE, "state": _TEXT,
    "steps_completed": _WHOLE, "metadata": _TABLE, "resources": _TABLE,
    "experiment_config": _TABLE, "hparams": _TABLE, "started_at": _TEXT,
    "committed_at": _MAYBE_TEXT, "validation": (dict, _NONE),
}  # fmt: skip
_FIELDS: dict[str, Mapping[str, tuple[type, ...]]] = {
    "experiment": {
        "id": _WHOLE, "name": _TEXT, "state": _TEXT, "error": _MAYBE_TEXT, "config": _TABLE,
        "archived": _FLAG, "progress": (*_NUMBER, _NONE), "created_at": _TEXT,
        "ended_at": _MAYBE_TEXT, "is_alive": (bool, _NONE),
    },
    "trial": {
        "id": _WHOLE, "experiment_id": _WHOLE, "state": _TEXT, "error": _MAYBE_TEXT,
        "hparams": _TABLE, "num_restarts": _WHOLE, "created_at": _TEXT, "ended_at": _MAYBE_TEXT,
    },
    "report": {
        "trial_id": _WHOLE, "run_id": _WHOLE, "steps_completed": _WHOLE, "metrics": _TABLE,
        "batch_metrics": (list, _NONE), "n_records": (int, _NONE), "reported_at": _TEXT,
    },
    "log": {"lines": _LIST, "position": _WHOLE, "is_over": _FLAG},
    "line": {"at": _NUMBER, "run": _WHOLE, "rank": _WHOLE, "stream": _TEXT, "text": _TEXT},
    "checkpoint": _CHECKPOINT,
    "ranked": {**_CHECKPOINT, "value": (*_NUMBER, str, _NONE)},
    "validation": {"metrics": _TABLE, "n_records": (int, _NONE)},
    "top": {"metric": _TEXT, "smaller_is_better": _FLAG, "checkpoints": _LIST},
    "files": {"uuid": _TEXT, "storage_url": _TEXT, "files": _LIST},
    "file": {"name": _TEXT, "size": _WHOLE},
    "model": {
        "id": _WHOLE, "name": _TEXT, "description": _TEXT, "metadata": _TABLE, "labels": _LIST,
        "archived": _FLAG, "num_versions": _WHOLE, "created_at": _TEXT, "updated_at": _TEXT,
    },
    "version": {
        "model_id": _WHOLE, "model_name": _TEXT, "number": _WHOLE, "checkpoint": _TABLE,
        "created_at": _TEXT,
    },
}  # fmt: skip
_DOCUMENTS = ("config", "hparams", "metadata", "experiment_config")
_METRICS = ("metrics", "batch_metrics", "value")


def checked(kind: str, answer: Any) -> Document:
    """Return a document with its special numbers, and only the fields that its kind has.

    Raises:
        ServerRefused: If it is none of its kind.
    """
    if not isinstance(answer, dict):
        raise _wrong(kind, f"it is no object but {type(answer).__name__}")
    document: Document = {}
    for name, types in _FIELDS[kind].items():
        value = answer.get(name)
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            missing = "" if name in answer else " (it is missing)"
            raise _wrong(kind, f"its {name!r} is {type(value).__name__}{missing}")
        if name in _DOCUMENTS:
            value = unspell_document(value)
        elif name in _METRICS and kind != "top":
            value = unspell_metrics(value)
        document[name] = value
    if document.get("validation") is not None:
        document["validation"] = checked("validation", document["validation"])
    if kind == "version":
        document["checkpoint"] = checked("checkpoint", document["checkpoint"])
    if kind == "log":
        document["lines"] = checked_list("line", document["lines"])
    return document


def checked_list(kind: str, answer: Any) -> list[Document]:
    """Return a list of documents of one kind.

    Raises:
        ServerRefused: If it is none.
    """
    if not isinstance(answer, list):
        raise _wrong(kind, f"it is no list but {type(answer).__name__}")
    return [checked(kind, item) for item in answer]


def _wrong(kind: str, why: str) -> ServerRefused:
    return ServerRefused(
        f"the server answered with what is no {kind}: {why}.\n"
        "It is another program, or a release of detcore that does not go with this one."
    )
