"""`Database`, which joins the groups of queries into one record store."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from detcore.records.checkpoint_queries import CheckpointQueries
from detcore.records.connections import ForkGuard, call_until_available, mask_url
from detcore.records.cursors import CursorQueries
from detcore.records.curve_queries import CurveQueries
from detcore.records.engine import READ_ONLY, make_engine, migrate_tables
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

    Every method may raise `DatabaseError` if the database cannot be read or reached, or stayed
    locked for 30 s. Methods that write may raise `StorageFullError`. The next call tries again,
    with a new connection if the server closed the old connection.

    """

    def __init__(
        self, engine: Engine, guard: ForkGuard, *, begin: Callable[..., Any] | None = None
    ) -> None:
        super().__init__(engine, begin)
        self._guard = guard

    @classmethod
    def open(cls, url: str) -> Self:
        """Open a database. Create it, or migrate its tables, if necessary.

        Args:
            url: SQLAlchemy URL, such as ``sqlite:////home/me/detcore.db`` (missing directories are
                created) or ``postgresql+psycopg://user@host/name``.

        Raises:
            DatabaseError: If it cannot be opened or written, is damaged, or was written by a
                newer detcore.
        """
        engine, guard = make_engine(url)
        try:
            migrate_tables(engine)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine, guard)

    def with_retries(
        self, notify: Callable[[str], None], *, should_stop: Callable[[], bool] = lambda: False
    ) -> Self:
        """Return a view of these records that waits while the database server is unreachable.

        A call still fails if the server becomes unreachable after the transaction has started,
        because the outcome is unknown then. The returned object shares these connections. The
        caller does not have to close it.

        Args:
            notify: Receives a message when a wait starts and when it ends.
            should_stop: Called while waiting. If it returns True, the call fails.
        """
        begin = functools.partial(call_until_available, notify=notify, should_stop=should_stop)
        return type(self)(self._engine, self._guard, begin=begin)

    @property
    def url(self) -> str:
        """URL that the database was opened with. Secrets are masked with ``***``."""
        return mask_url(self._engine.url)

    @property
    def is_read_only(self) -> bool:
        """Whether the database is in a read-only directory, so that it cannot be changed."""
        return bool(self._engine.get_execution_options().get(READ_ONLY))

    def close(self) -> None:
        """Close all connections. Further calls have no effect."""
        self._guard.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
