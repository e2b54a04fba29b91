"""Search methods decide which trials to create and how far to train each of them.

Everything here is pure: a method receives events and returns decisions. The decisions depend only
on the experiment's seed and these events, so a search whose runner was killed continues exactly
from its log.
"""

from detcore.config import ranges
from detcore.contract.search_method import (
    Answer,
    ExitReason,
    NewTrial,
    SearchMethod,
    SearchSetup,
    TrainTo,
)
from detcore.search.sampling import place_values, sample
from detcore.search.search_settings import RandomSettings
from detcore.search.search_state import (
    Close,
    Create,
    Event,
    Exited,
    Operation,
    PlannedTrial,
    Search,
    Train,
    Validated,
    event_from_json,
    event_to_json,
)
from detcore.search.simple_methods import ReplacingQueue

__all__ = [
    "Answer",
    "Close",
    "Create",
    "Event",
    "ExitReason",
    "Exited",
    "NewTrial",
    "Operation",
    "PlannedTrial",
    "RandomSettings",
    "ReplacingQueue",
    "Search",
    "SearchMethod",
    "SearchSetup",
    "Train",
    "TrainTo",
    "Validated",
    "event_from_json",
    "event_to_json",
    "place_values",
    "ranges",
    "sample",
]
