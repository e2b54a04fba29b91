"""The records that commands read; what is told of them is in `detcore.pages`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from detcore.pages import (
    best_of,
    can_resume,
    describe_experiment,
    describe_state,
    describe_trials,
    duration_s,
    flatten,
    metric_value,
    searcher_metric,
    sort_key,
    summarize_config,
    took_s,
    trial_state,
)

if TYPE_CHECKING:
    from detcore.cli._context import CliContext
    from detcore.database import Database

__all__ = [
    "best_of",
    "can_resume",
    "describe_experiment",
    "describe_state",
    "describe_trials",
    "duration_s",
    "flatten",
    "metric_value",
    "open_records",
    "searcher_metric",
    "sort_key",
    "summarize_config",
    "took_s",
    "trial_state",
]


@contextlib.contextmanager
def open_records(obj: CliContext) -> Iterator[Database]:
    """Open the database, with everything in it that workers have reported so far."""
    from detcore.database import Database, ingest_spools

    with Database.open(obj.environment.database_url) as database:
        ingest_spools(database, obj.environment.home)
        yield database
