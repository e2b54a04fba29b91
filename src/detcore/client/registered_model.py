"""`Model`, the client's view of a model in the registry."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from detcore.client.arguments import check_id, check_keys, check_metadata, check_text
from detcore.client.client_checkpoint import Checkpoint
from detcore.client.transport import TransportUser
from detcore.contract.errors import InvalidArgumentError, describe
from detcore.contract.values import ModelOrderBy

if TYPE_CHECKING:
    from detcore.client.documents import Document
    from detcore.client.transport import Transport

_LATEST = (0, -1)


class Model(TransportUser):
    """A model: a name, metadata, and checkpoints as numbered versions.

    A version is returned as its `Checkpoint` with `Checkpoint.model_name` and
    `Checkpoint.model_version`.

    Attributes:
        name: Unique name.
        description: A short description.
        creation_time: Creation time.
        last_updated_time: Time of the last change of the model or of a version.
        metadata: Custom metadata.
        model_id: Id, or None if the object was not read from a store.
        labels: Labels for searching.
        archived: Whether it is archived. An archived model cannot be changed.
        num_versions: Number of versions.
    """

    def __init__(
        self,
        name: str,
        description: str = "",
        creation_time: datetime.datetime | None = None,
        last_updated_time: datetime.datetime | None = None,
        metadata: dict[str, Any] | None = None,
        master: str | None = "",
        *,
        model_id: int | None = None,
        labels: Iterable[str] = (),
        archived: bool = False,
        num_versions: int = 0,
        transport: Transport | None = None,
    ) -> None:
        """Set the fields; `Determined.get_model` reads them from the store."""
        super().__init__(master, transport)
        self.name = name
        self.description = description
        self.creation_time = creation_time
        self.last_updated_time = last_updated_time
        self.metadata = {} if metadata is None else metadata
        self.model_id = model_id
        self.labels = list(labels)
        self.archived = archived
        self.num_versions = num_versions

    @classmethod
    def from_document(
        cls, document: Document, transport: Transport | None, *, master: str | None = None
    ) -> Model:
        """Create a model from a document of a store; see `Transport`."""
        model = cls(document["name"], master=master, transport=transport)
        model._update_from(document)
        return model

    @classmethod
    def from_json(cls, data: Mapping[str, Any], master: str | None = None) -> Model:
        """Create a model from the result of `to_json`."""
        return cls(
            name=data["name"],
            description=data.get("description", ""),
            creation_time=_parse_time(data.get("creation_time")),
            last_updated_time=_parse_time(data.get("last_updated_time")),
            metadata=dict(data.get("metadata") or {}),
            master=master,
        )

    def to_json(self) -> dict[str, Any]:
        """Return its name, description, times and metadata as JSON values."""
        created, updated = self.creation_time, self.last_updated_time
        return {
            "name": self.name,
            "description": self.description,
            "creation_time": created.isoformat() if created else None,
            "last_updated_time": updated.isoformat() if updated else None,
            "metadata": self.metadata,
        }

    def __repr__(self) -> str:
        return f"Model(name={self.name!r})"

    # -- versions ---------------------------------------------------------------------------------

    def get_version(self, version: int = 0) -> Checkpoint | None:
        """Return a version.

        Args:
            version: Version number; 0 or -1 means the latest version.

        Returns:
            The checkpoint of the version, or None if the version does not exist.

        Raises:
            InvalidArgumentError: If `version` is not a version number.
        """
        number = check_id("version", version)
        if number < min(_LATEST):
            raise InvalidArgumentError(
                f"version is {describe(version)}; expected a number from 1, or 0 or -1 for the "
                "latest"
            )
        document = self._transport.get_version(self._key, 0 if number in _LATEST else number)
        return None if document is None else self._make_version(document)

    def get_versions(self, order_by: ModelOrderBy = ModelOrderBy.DESCENDING) -> list[Checkpoint]:
        """Return all versions sorted by number, by default the newest first."""
        order = ModelOrderBy(order_by).value
        documents = self._transport.list_versions(self._key, order_by=order)
        return [self._make_version(document) for document in documents]

    def register_version(
        self,
        checkpoint_uuid: str,
        *,
        name: str = "",
        comment: str = "",
        notes: str = "",
        metadata: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Register a checkpoint as the next version.

        A registered checkpoint is exempt from retention and cannot be deleted.

        Args:
            checkpoint_uuid: UUID of the checkpoint.
            name: Name of the version.
            comment: One-line description of the version.
            notes: Longer notes on the version.
            metadata: Custom metadata; a dictionary of JSON values.

        Returns:
            The checkpoint with its version number.

        Raises:
            NotFoundError: If no checkpoint has this UUID.
            CheckpointStateError: If it is not complete.
            DatabaseError: If the model is archived.
            InvalidArgumentError: If an argument has the wrong type.
        """
        uuid = check_text("checkpoint_uuid", checkpoint_uuid)
        fields: dict[str, Any] = {"name": name, "comment": comment, "notes": notes}
        for field_name, text in fields.items():
            if not isinstance(text, str):
                raise InvalidArgumentError(f"{field_name} is {describe(text)}; expected a string")
        if metadata:
            fields["metadata"] = check_metadata(metadata)
        version = self._make_version(self._transport.register_version(self._key, uuid, **fields))
        self._update_from(self._transport.get_model(self._key))
        return version

    def delete_version(self, version: int) -> None:
        """Delete a version. Its number is never reused, and its checkpoint stays.

        Raises:
            NotFoundError: If the version does not exist.
            DatabaseError: If the model is archived.
        """
        self._transport.delete_version(self._key, check_id("version", version))
        self._update_from(self._transport.get_model(self._key))

    # -- metadata, description and labels ---------------------------------------------------------

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add to its metadata. Values of existing keys are replaced.

        Args:
            metadata: A dictionary of JSON values.

        Raises:
            InvalidArgumentError: If it cannot be stored as JSON.
            DatabaseError: If the model is archived.
        """
        self._update_from(self._transport.add_model_metadata(self._key, check_metadata(metadata)))

    def remove_metadata(self, keys: Iterable[str]) -> None:
        """Remove top-level keys from its metadata. Missing keys are ignored.

        Raises:
            InvalidArgumentError: If `keys` is not a list of strings (also a ValueError).
            DatabaseError: If the model is archived.
        """
        self._update_from(
            self._transport.remove_model_metadata(self._key, check_keys("keys", keys))
        )

    def set_description(self, description: str) -> None:
        """Replace its description.

        Raises:
            DatabaseError: If the model is archived.
        """
        if not isinstance(description, str):
            raise InvalidArgumentError(f"description is {describe(description)}; expected a string")
        self._update_from(
            self._transport.update_model(self._key, description=description, labels=None)
        )

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replace its labels.

        Raises:
            InvalidArgumentError: If `labels` is not a list of strings.
            DatabaseError: If the model is archived.
        """
        texts = check_keys("labels", labels)
        self._update_from(self._transport.update_model(self._key, description=None, labels=texts))

    def archive(self) -> None:
        """Archive the model, so that it cannot be changed."""
        self._update_from(self._transport.set_model_archived(self._key, True))

    def unarchive(self) -> None:
        """Unarchive the model."""
        self._update_from(self._transport.set_model_archived(self._key, False))

    def delete(self) -> None:
        """Delete the model and its versions. Checkpoints stay, but retention may delete them."""
        self._transport.delete_model(self._key)

    @property
    def _key(self) -> str | int:
        """Key of the model in the store. Names may be reused for other models, ids may not."""
        return self.name if self.model_id is None else self.model_id

    def _make_version(self, document: Document) -> Checkpoint:
        return Checkpoint.from_document(
            document["checkpoint"],
            self._transport,
            master=self.master,
            model_name=document["model_name"],
            model_version=document["number"],
        )

    def _update_from(self, document: Document) -> None:
        """Update the attributes from a document of a store."""
        self.name = document["name"]
        self.description = document["description"]
        self.creation_time = _parse_time(document["created_at"])
        self.last_updated_time = _parse_time(document["updated_at"])
        self.metadata = document["metadata"]
        self.model_id = document["id"]
        self.labels = document["labels"]
        self.archived = document["archived"]
        self.num_versions = document["num_versions"]


def _parse_time(text: str | None) -> datetime.datetime | None:
    return None if text is None else datetime.datetime.fromisoformat(text)
