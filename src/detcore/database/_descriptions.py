"""Changes to the description of an experiment after it was started."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, delete, select, update

from detcore._log import decode_document, encode_document
from detcore.database._checked import checked_texts
from detcore.database._queries import Queries, require
from detcore.database._schema import experiment_labels, experiments
from detcore.database._text import MAX_INDEXED

__all__ = ["DescriptionQueries"]


class DescriptionQueries(Queries):
    """Change names, descriptions and labels of experiments."""

    def describe_experiment(
        self,
        experiment_id: int,
        *,
        name: str | None = None,
        description: str | None = None,
        notes: str | None = None,
        labels: Iterable[str] | None = None,
        add_labels: Iterable[str] = (),
        remove_labels: Iterable[str] = (),
    ) -> list[str]:
        """Change an experiment's name, description, notes or labels; None keeps a value.

        The configuration changes, too.

        Args:
            experiment_id: Which.
            name: Its name in lists.
            description: A short description.
            notes: A longer text about it; not part of the configuration.
            labels: Replace all that it has.
            add_labels: It has these afterwards.
            remove_labels: It does not have these afterwards.

        Returns:
            Its labels, sorted.

        Raises:
            NotFoundError: If no experiment has that id.
            ConfigError: If the labels are no list of texts.
        """
        given = {"name": name, "description": description}
        changed: dict[str, Any] = {key: text for key, text in given.items() if text is not None}
        added = set(checked_texts("labels", add_labels))
        removed = set(checked_texts("labels", remove_labels))
        with self._write() as connection:
            row = connection.execute(
                select(experiments.c.config)
                .where(experiments.c.id == experiment_id)
                .with_for_update()
            ).fetchone()
            if row is None:
                require(connection, experiments, "experiment", experiment_id)
            assert row is not None  # require has raised
            config = {**decode_document(row.config), **changed}
            before = config.get("labels") or ()
            if labels is not None:
                before = checked_texts("labels", labels)
            after = sorted(({str(label) for label in before} | added) - removed)
            if labels is not None or added or removed:
                config["labels"] = after
                _replace_labels(connection, experiment_id, after)
            texts = {"name": name, "notes": notes}
            columns = {key: text for key, text in texts.items() if text is not None}
            connection.execute(
                update(experiments)
                .where(experiments.c.id == experiment_id)
                .values(config=encode_document(config), **columns)
            )
            return after


def _replace_labels(connection: Connection, experiment_id: int, labels: list[str]) -> None:
    connection.execute(
        delete(experiment_labels).where(experiment_labels.c.experiment_id == experiment_id)
    )
    for label in sorted({label[:MAX_INDEXED] for label in labels}):
        connection.execute(
            experiment_labels.insert().values(label=label, experiment_id=experiment_id)
        )
