"""Metadata that users add to checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import select, update

from detcore._log import decode_document, encode_document
from detcore._records import CheckpointRecord, read_row
from detcore.database._checked import checked_metadata, checked_texts
from detcore.database._queries import Queries
from detcore.database._schema import checkpoints
from detcore.errors import NotFoundError

__all__ = ["CheckpointMetadataQueries"]


class CheckpointMetadataQueries(Queries):
    """Change the metadata of checkpoints; each change is one transaction."""

    def add_checkpoint_metadata(
        self, uuid: str, metadata: Mapping[str, object]
    ) -> CheckpointRecord:
        """Add to a checkpoint's metadata; of top-level keys that are there the values are replaced.

        Args:
            uuid: The whole UUID.
            metadata: JSON values.

        Raises:
            NotFoundError: If there is no such checkpoint.
            ConfigError: If `metadata` is no dictionary of JSON values.
        """
        added = checked_metadata(metadata)
        return self._change_metadata(uuid, lambda before: {**before, **added})

    def remove_checkpoint_metadata(self, uuid: str, keys: Iterable[str]) -> CheckpointRecord:
        """Remove top-level keys of a checkpoint's metadata; those that are not there are skipped.

        Raises:
            NotFoundError: If there is no such checkpoint.
            ConfigError: If `keys` is not a list of texts.
        """
        gone = set(checked_texts("keys", keys))
        return self._change_metadata(
            uuid, lambda before: {key: before[key] for key in before if key not in gone}
        )

    def _change_metadata(
        self, uuid: str, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> CheckpointRecord:
        here = checkpoints.c.uuid == uuid
        with self._write() as connection:
            row = connection.execute(select(checkpoints.c.metadata).where(here)).fetchone()
            if row is None:
                raise NotFoundError(
                    f"no checkpoint {uuid!r} is recorded.\nList them: detcore checkpoint list"
                )
            text = encode_document(change(decode_document(row.metadata)))
            connection.execute(update(checkpoints).where(here).values(metadata=text))
            return read_row(
                CheckpointRecord, connection.execute(select(checkpoints).where(here)).one()
            )
