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
    """Pass an event to a method, and return its answers."""
    if isinstance(event, Validated):
        return method.validated(event.trial, event.length, event.metric)
    return method.exited(event.trial, event.reason)


def pass_events(method: SearchMethod, events: Sequence[Event]) -> list[list[Answer]]:
    """Start a method and pass it events. Return the answers to `start` and to each event."""
    return [list(method.start()), *(list(pass_event(method, event)) for event in events)]


def main() -> None:
    """Run the searches in the request on standard input, and print the answers."""
    request: Mapping[str, Any] = json.load(sys.stdin)
    method_class = import_object(request["target"])
    for search in request["searches"]:
        method: SearchMethod = method_class(SearchSetup(**search["setup"]))
        for answers in pass_events(method, list(map(event_from_json, search["events"]))):
            print(json.dumps(list(map(dataclasses.asdict, answers))))


if __name__ == "__main__":
    main()
