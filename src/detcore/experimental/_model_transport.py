"""The part of `EmbeddedTransport` that reads and changes models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from detcore._records import make_document
from detcore.contract.values import ModelOrderBy

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from detcore.database import CheckpointRecord, Database, ModelVersionRecord
    from detcore.experimental._transport import Document


class ModelQuery(TypedDict):
    """Which models `ModelTransport.list_models` returns, and in which order.

    ``sort_by`` is a `ModelSortBy`, ``order_by`` an `OrderBy`; for the others see the parameters of
    `Database.list_models`.
    """

    sort_by: int
    order_by: int
    name: str
    description: str
    labels: list[str]
    archived: bool | None
    limit: int | None
    offset: int


class VersionTexts(TypedDict, total=False):
    """Texts and metadata of a new version of a model; empty by default."""

    name: str
    comment: str
    notes: str
    metadata: Document | None


class ModelTransport:
    """Reads and changes models in the records; see `detcore.experimental.Transport`.

    Other transports have the same methods.

    Documents:

    - model: ``id, name, description, metadata, labels, archived, num_versions, created_at,
      updated_at``;
    - version: ``model_id, model_name, number, checkpoint`` (a document), ``created_at``.
    """

    def database(self) -> Database:
        """Return the records, opened."""
        raise NotImplementedError

    def checkpoint_documents(
        self, database: Database, records: Sequence[CheckpointRecord]
    ) -> list[Document]:
        """Return checkpoints with the validations at their steps."""
        raise NotImplementedError

    def create_model(
        self, name: str, description: str, metadata: Document, labels: list[str]
    ) -> Document:
        """Add a model."""
        return make_document(
            self.database().create_model(
                name, description=description, metadata=metadata, labels=labels
            )
        )

    def get_model(self, model: str | int) -> Document:
        """Return a model by its name or its id."""
        return make_document(self.database().get_model(model))

    def list_models(self, **query: Unpack[ModelQuery]) -> list[Document]:
        """Return models."""
        return [make_document(record) for record in self.database().list_models(**query)]

    def update_model(
        self, model: str | int, *, description: str | None, labels: list[str] | None
    ) -> Document:
        """Change a model's description or labels; None keeps a value."""
        return make_document(
            self.database().update_model(model, description=description, labels=labels)
        )

    def set_model_archived(self, model: str | int, archived: bool) -> Document:
        """Put a model away, or bring it back."""
        return make_document(self.database().set_model_archived(model, archived))

    def add_model_metadata(self, model: str | int, metadata: Document) -> Document:
        """Add to a model's metadata."""
        return make_document(self.database().add_model_metadata(model, metadata))

    def remove_model_metadata(self, model: str | int, keys: list[str]) -> Document:
        """Remove keys from a model's metadata."""
        return make_document(self.database().remove_model_metadata(model, keys))

    def delete_model(self, model: str | int) -> None:
        """Delete a model and its versions; checkpoints stay."""
        self.database().delete_model(model)

    def register_version(
        self, model: str | int, checkpoint_uuid: str, **given: Unpack[VersionTexts]
    ) -> Document:
        """Make a checkpoint the next version of a model, and return the version."""
        database = self.database()
        record = database.register_version(model, checkpoint_uuid, **given)
        return self._versions(database, model, [record])[0]

    def get_version(self, model: str | int, number: int) -> Document | None:
        """Return a version of a model, 0 for the latest; None if it does not exist."""
        database = self.database()
        record = database.get_version(model, number)
        return None if record is None else self._versions(database, model, [record])[0]

    def list_versions(
        self, model: str | int, *, order_by: int, limit: int | None, offset: int
    ) -> list[Document]:
        """Return the versions of a model by number."""
        database = self.database()
        records = database.list_versions(model, order_by=ModelOrderBy(order_by))
        return self._versions(database, model, _part(records, limit, offset))

    def delete_version(self, model: str | int, number: int) -> None:
        """Delete a version of a model; its checkpoint stays."""
        self.database().delete_version(model, number)

    def _versions(
        self, database: Database, model: str | int, records: Sequence[ModelVersionRecord]
    ) -> list[Document]:
        name = database.get_model(model).name
        checkpoints = self.checkpoint_documents(
            database, [database.get_checkpoint(record.checkpoint_uuid) for record in records]
        )
        return [
            make_document(record, model_name=name, checkpoint=checkpoint)
            for record, checkpoint in zip(records, checkpoints, strict=True)
        ]


def _part(records: list[Any], limit: int | None, offset: int) -> list[Any]:
    return records[offset : None if limit is None else offset + limit]
