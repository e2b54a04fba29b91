"""The record store."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from detcore.records.checkpoint_queries import CheckpointQueries
from detcore.records.connections import ForkGuard, call_until_available, mask_url
from detcore.records.cursors import CursorQueries
from detcore.records.curve_queries import CurveQueries
from detcore.records.engine import READ_ONLY, bring_up_to_date, make_engine
from detcore.records.experiment_queries import ExperimentQueries
from detcore.records.metric_queries import MetricQueries
from detcore.records.model_queries import ModelQueries
from detcore.records.ranking_queries import RankingQueries
from detcore.records.search_queries import SearchQueries
from detcore.records.trial_queries import TrialQueries

if TYPE_CHECKING:
    from typing_extensions import Self


class Database(
    ExperimentQueries,
    TrialQueries,
    SearchQueries,
    CursorQueries,
    MetricQueries,
    CheckpointQueries,
    RankingQueries,
    CurveQueries,
    ModelQueries,
):
    """Experiments, trials, metrics, checkpoints and models, shared by all processes.

    Methods may be called from any thread. Each is one transaction; when it returns, its changes
    are visible to every process and survive the death of this one. After a fork the child may
    continue to use it.

    Every method may raise `DatabaseError` (it cannot be read or reached, or stayed locked for
    30 s), and those that write `StorageFullError`. The next call tries again, with a new
    connection if the server was gone.

    """

    def __init__(
        self, engine: Engine, guard: ForkGuard, *, begin: Callable[..., Any] | None = None
    ) -> None:
        super().__init__(engine, begin)
        self._guard = guard

    @classmethod
    def open(cls, url: str) -> Self:
        """Open a database; create it, or bring its tables up to date, where needed.

        Args:
            url: SQLAlchemy URL, such as ``sqlite:////home/me/detcore.db`` (folders are created) or
                ``postgresql+psycopg://user@host/name``.

        Raises:
            DatabaseError: If it cannot be opened or written, is damaged, or was written by a
                newer detcore.
        """
        engine, guard = make_engine(url)
        try:
            bring_up_to_date(engine)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine, guard)

    def with_retries(
        self, notify: Callable[[str], None], *, should_stop: Callable[[], bool] = lambda: False
    ) -> Self:
        """Return the same records, for callers that wait while their server is unreachable.

        A call fails nevertheless if the server becomes unreachable after its transaction has
        started: whether it was done is not known. The returned object shares these connections, and
        need not be closed.

        Args:
            notify: Receives a message when a wait starts, and when it is over.
            should_stop: Called while waiting. If it returns True, the call fails.
        """
        begin = functools.partial(call_until_available, notify=notify, should_stop=should_stop)
        return type(self)(self._engine, self._guard, begin=begin)

    @property
    def url(self) -> str:
        """The URL it was opened with; secrets in it are shown as ``***``."""
        return mask_url(self._engine.url)

    @property
    def is_read_only(self) -> bool:
        """Whether it lies in a read-only place: it can be read, and not changed."""
        return bool(self._engine.get_execution_options().get(READ_ONLY))

    def close(self) -> None:
        """Close all connections. Calling it again is fine."""
        self._guard.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
