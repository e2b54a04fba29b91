"""A process that makes new search methods, and replays to them the events of earlier searches.

Run with ``python -m``: standard input names the method and the searches in JSON; each answer is a
line. None of this package's requirements is imported here.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from detcore.search import (
    Answer,
    Event,
    SearchMethod,
    SearchSetup,
    Validated,
    event_from_json,
)
from detcore.trial import import_object


def pass_event(method: SearchMethod, event: Event) -> Sequence[Answer]:
    """Pass an event to a method; return its answer."""
    if isinstance(event, Validated):
        return method.validated(event.trial, event.length, event.metric)
    return method.exited(event.trial, event.reason)


def pass_events(method: SearchMethod, events: Sequence[Event]) -> list[list[Answer]]:
    """Pass events to a new method; return its answers, beginning with that to `start`."""
    return [list(method.start()), *(list(pass_event(method, event)) for event in events)]


def main() -> None:
    """Answer the request on standard input."""
    asked: Mapping[str, Any] = json.load(sys.stdin)
    made = import_object(asked["target"])
    for search in asked["searches"]:
        method: SearchMethod = made(SearchSetup(**search["setup"]))
        for answers in pass_events(method, [event_from_json(each) for each in search["events"]]):
            print(json.dumps([dataclasses.asdict(each) for each in answers]))


if __name__ == "__main__":
    main()
