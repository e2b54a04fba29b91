"""The part of a transport that asks for models, and that of the records of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, cast

from detcore.experimental import Document, EmbeddedTransport, Transport, make_document
from detcore.types import ModelOrderBy

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from detcore.database import ModelVersionRecord
    from detcore_registry._database import RegistryDatabase

__all__ = ["ModelQuery", "ModelTransport", "VersionTexts", "models_of"]


class ModelQuery(TypedDict):
    """Which models `ModelTransport.list_models` returns, and in which order.

    ``sort_by`` is a `ModelSortBy`, ``order_by`` an `OrderBy`; for the others see the parameters of
    `RegistryDatabase.list_models`.
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
    """Asks for models; see `detcore.experimental.Transport`.

    This one asks the records of an `EmbeddedTransport`. Other transports have the same methods.

    Documents:

    - model: ``id, name, description, metadata, labels, archived, num_versions, created_at,
      updated_at``;
    - version: ``model_id, model_name, number, checkpoint`` (a document), ``created_at``.
    """

    def __init__(self, transport: EmbeddedTransport) -> None:
        self._transport = transport

    @property
    def _database(self) -> RegistryDatabase:
        from detcore_registry._database import RegistryDatabase  # loads SQLAlchemy

        return self._transport.database().as_class(RegistryDatabase)

    def create_model(
        self, name: str, description: str, metadata: Document, labels: list[str]
    ) -> Document:
        """Add a model."""
        return make_document(
            self._database.create_model(
                name, description=description, metadata=metadata, labels=labels
            )
        )

    def get_model(self, model: str | int) -> Document:
        """Return a model by its name or its id."""
        return make_document(self._database.get_model(model))

    def list_models(self, **query: Unpack[ModelQuery]) -> list[Document]:
        """Return models."""
        return [make_document(record) for record in self._database.list_models(**query)]

    def update_model(
        self, model: str | int, *, description: str | None, labels: list[str] | None
    ) -> Document:
        """Change a model's description or labels; None keeps a value."""
        return make_document(
            self._database.update_model(model, description=description, labels=labels)
        )

    def set_model_archived(self, model: str | int, archived: bool) -> Document:
        """Put a model away, or bring it back."""
        return make_document(self._database.set_model_archived(model, archived))

    def add_model_metadata(self, model: str | int, metadata: Document) -> Document:
        """Add to a model's metadata."""
        return make_document(self._database.add_model_metadata(model, metadata))

    def remove_model_metadata(self, model: str | int, keys: list[str]) -> Document:
        """Remove keys from a model's metadata."""
        return make_document(self._database.remove_model_metadata(model, keys))

    def delete_model(self, model: str | int) -> None:
        """Delete a model and its versions; checkpoints stay."""
        self._database.delete_model(model)

    def register_version(
        self, model: str | int, checkpoint_uuid: str, **given: Unpack[VersionTexts]
    ) -> Document:
        """Make a checkpoint the next version of a model, and return the version."""
        database = self._database
        record = database.register_version(model, checkpoint_uuid, **given)
        return self._versions(database, model, [record])[0]

    def get_version(self, model: str | int, number: int) -> Document | None:
        """Return a version of a model, 0 for the latest; None if it does not exist."""
        database = self._database
        record = database.get_version(model, number)
        return None if record is None else self._versions(database, model, [record])[0]

    def list_versions(
        self, model: str | int, *, order_by: int, limit: int | None, offset: int
    ) -> list[Document]:
        """Return the versions of a model by number."""
        database = self._database
        records = database.list_versions(model, order_by=ModelOrderBy(order_by))
        return self._versions(database, model, _part(records, limit, offset))

    def delete_version(self, model: str | int, number: int) -> None:
        """Delete a version of a model; its checkpoint stays."""
        self._database.delete_version(model, number)

    def _versions(
        self, database: RegistryDatabase, model: str | int, records: Sequence[ModelVersionRecord]
    ) -> list[Document]:
        name = database.get_model(model).name
        checkpoints = self._transport.checkpoint_documents(
            database, [database.get_checkpoint(record.checkpoint_uuid) for record in records]
        )
        return [
            make_document(record, model_name=name, checkpoint=checkpoint)
            for record, checkpoint in zip(records, checkpoints, strict=True)
        ]


def models_of(transport: Transport) -> ModelTransport:
    """Return the part of a transport that asks for models."""
    if isinstance(transport, EmbeddedTransport):
        return ModelTransport(transport)
    return cast("ModelTransport", transport)


def _part(records: list[Any], limit: int | None, offset: int) -> list[Any]:
    return records[offset : None if limit is None else offset + limit]
