"""Experiments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import select, update

from detcore.database._process import is_alive
from detcore.database._queries import Queries, now, require, this_process
from detcore.database._records import ExperimentRecord, experiment_of
from detcore.database._schema import experiments
from detcore.database._secrets import hide_secrets
from detcore.database._values import encode_document
from detcore.types import ExperimentState

__all__ = ["ExperimentQueries"]


class ExperimentQueries(Queries):
    """Create, read and move on experiments."""

    def create_experiment(
        self, *, config: Mapping[str, object], config_text: str | None, model_dir: str, name: str
    ) -> int:
        """Record a new experiment, in state RUNNING under the calling process.

        Secrets in the configuration and in the file are starred out; see `keep_secrets`.

        Args:
            config: The configuration, defaults applied; JSON values.
            config_text: The experiment file as it was written, or None.
            model_dir: Folder of the user's code.
            name: What to call it in lists.

        Returns:
            Its id, from 1.
        """
        config, config_text = hide_secrets(config, config_text)
        with self._write() as connection:
            created = connection.execute(
                experiments.insert().values(
                    name=name,
                    state=ExperimentState.RUNNING.value,
                    config=encode_document(config),
                    config_text=config_text,
                    model_dir=model_dir,
                    process=this_process(),
                    archived=False,
                    created_at=now(),
                )
            )
            return int(created.inserted_primary_key[0])  # type: ignore[index]  # of a single row

    def get_experiment(self, experiment_id: int) -> ExperimentRecord:
        """Return an experiment.

        Raises:
            NotFoundError: If there is none of that id; the message lists those there are.
        """
        with self._read() as connection:
            row = connection.execute(
                select(experiments).where(experiments.c.id == experiment_id)
            ).fetchone()
            if row is None:
                require(connection, experiments, "experiment", experiment_id)
            assert row is not None  # require has raised
            return experiment_of(row)

    def list_experiments(
        self, *, states: Iterable[ExperimentState] | None = None
    ) -> list[ExperimentRecord]:
        """Return experiments, oldest first.

        Args:
            states: Only those in one of these states; default: all.
        """
        query = select(experiments)
        if states is not None:
            wanted = [ExperimentState(state).value for state in states]
            query = query.where(experiments.c.state.in_(wanted))
        with self._read() as connection:
            rows = connection.execute(query.order_by(experiments.c.id))
            return [experiment_of(row) for row in rows]

    def set_experiment_state(
        self, experiment_id: int, state: ExperimentState, *, error: str | None = None
    ) -> None:
        """Record where an experiment stands; RUNNING means under the calling process.

        Args:
            experiment_id: Which.
            state: The new state.
            error: What went wrong, in a line; None removes an earlier error.

        Raises:
            NotFoundError: If there is none of that id.
        """
        running = state == ExperimentState.RUNNING
        changed: dict[str, object] = {
            "state": ExperimentState(state).value,
            "error": error,
            "ended_at": None if running else now(),
        }
        if running:
            changed["process"] = this_process()
        with self._write() as connection:
            found = connection.execute(
                update(experiments).where(experiments.c.id == experiment_id).values(**changed)
            )
            if found.rowcount == 0:
                require(connection, experiments, "experiment", experiment_id)

    def experiment_is_alive(self, experiment_id: int) -> bool | None:
        """Return whether the process that runs an experiment is there.

        Returns:
            None if it is on another host, where that cannot be told.

        Raises:
            NotFoundError: If there is none of that id.
        """
        process = self.get_experiment(experiment_id).process
        return False if process is None else is_alive(process)
