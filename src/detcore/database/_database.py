"""The record store."""

from __future__ import annotations

import types

from detcore.database._checkpoints import CheckpointQueries
from detcore.database._engine import make_engine
from detcore.database._experiments import ExperimentQueries
from detcore.database._metrics import MetricQueries
from detcore.database._migrate import bring_up_to_date
from detcore.database._models import ModelQueries
from detcore.database._searches import SearchQueries
from detcore.database._trials import TrialQueries

__all__ = ["Database"]


class Database(
    ExperimentQueries,
    TrialQueries,
    SearchQueries,
    MetricQueries,
    CheckpointQueries,
    ModelQueries,
):
    """Experiments, trials, metrics, checkpoints and models, shared by all processes.

    Methods may be called from any thread. Each is one transaction; what it wrote is there for
    every process when it returns, and survives the death of this one. After a fork the child may
    go on using it.

    Every method may raise `DatabaseError` (it cannot be read, or stayed locked for 30 s), and
    those that write `StorageFullError`.
    """

    @classmethod
    def open(cls, url: str) -> Database:
        """Open a database; create it, or bring its tables up to date, where needed.

        Args:
            url: SQLAlchemy URL, such as ``sqlite:////home/me/detcore.db``. Folders are created.

        Raises:
            DatabaseError: If it cannot be opened or written, is damaged, or was written by a
                newer detcore.
        """
        engine = make_engine(url)
        try:
            bring_up_to_date(engine)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine)

    @property
    def url(self) -> str:
        """The URL it was opened with; a password is shown as ``***``."""
        return self._engine.url.render_as_string()

    def close(self) -> None:
        """Close all connections. Calling it again is fine."""
        self._engine.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        self.close()
