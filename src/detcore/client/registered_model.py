"""The model registry, as the client sees it."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from detcore.client.arguments import check_id, check_keys, check_metadata, check_text
from detcore.client.client_checkpoint import Checkpoint
from detcore.client.transport import Connected
from detcore.contract.errors import InvalidArgumentError, describe
from detcore.contract.values import ModelOrderBy

if TYPE_CHECKING:
    from detcore.client.documents import Document
    from detcore.client.transport import Transport

_LATEST = (0, -1)


class Model(Connected):
    """A model: a name, metadata, and checkpoints as its numbered versions.

    A version is returned as its `Checkpoint`, with `Checkpoint.model_name` and
    `Checkpoint.model_version` filled in.

    Attributes:
        name: Its name, unique.
        description: A short description.
        creation_time: When it was created.
        last_updated_time: When it, or one of its versions, was changed last.
        metadata: The user's own.
        model_id: Its number, or None where the store was not asked.
        labels: Words to find it by.
        archived: Whether it is put away: shown, but not changed any more.
        num_versions: How many versions it has.
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
        """Make one from a store's document; see `Transport`."""
        model = cls(document["name"], master=master, transport=transport)
        model._take(document)
        return model

    @classmethod
    def from_json(cls, data: Mapping[str, Any], master: str | None = None) -> Model:
        """Make one from the result of `to_json`."""
        return cls(
            name=data["name"],
            description=data.get("description", ""),
            creation_time=_time(data.get("creation_time")),
            last_updated_time=_time(data.get("last_updated_time")),
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
            version: Its number; 0 or -1: the latest one.

        Returns:
            Its checkpoint, or None if there is no such version.

        Raises:
            InvalidArgumentError: If `version` is no number of a version.
        """
        number = check_id("version", version)
        if number < min(_LATEST):
            raise InvalidArgumentError(
                f"version is {describe(version)}; expected a number from 1, or 0 or -1 for the "
                "latest"
            )
        wanted = 0 if number in _LATEST else number
        document = self._transport.get_version(self._key, wanted)
        return None if document is None else self._version(document)

    def get_versions(self, order_by: ModelOrderBy = ModelOrderBy.DESCENDING) -> list[Checkpoint]:
        """Return all versions, sorted by number, the newest first unless told otherwise."""
        order = ModelOrderBy(order_by).value
        documents = self._transport.list_versions(self._key, order_by=order)
        return [self._version(document) for document in documents]

    def register_version(
        self,
        checkpoint_uuid: str,
        *,
        name: str = "",
        comment: str = "",
        notes: str = "",
        metadata: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Make a checkpoint the next version.

        From now on it is not deleted by retention, and deleting it is refused.

        Args:
            checkpoint_uuid: Its UUID.
            name: Name of the version.
            comment: One line about the version.
            notes: Longer text about the version.
            metadata: The user's own; a dictionary that JSON can express.

        Returns:
            The checkpoint, with the version's number.

        Raises:
            NotFoundError: If there is no such checkpoint.
            CheckpointStateError: If it is not complete.
            DatabaseError: If the model is archived.
            InvalidArgumentError: If an argument is of the wrong kind.
        """
        uuid = check_text("checkpoint_uuid", checkpoint_uuid)
        given: dict[str, Any] = {"name": name, "comment": comment, "notes": notes}
        for what, text in given.items():
            if not isinstance(text, str):
                raise InvalidArgumentError(f"{what} is {describe(text)}; expected a text")
        if metadata:
            given["metadata"] = check_metadata(metadata)
        version = self._version(self._transport.register_version(self._key, uuid, **given))
        self._take(self._transport.get_model(self._key))
        return version

    def delete_version(self, version: int) -> None:
        """Delete a version. Its number is not given again, and its checkpoint stays.

        Raises:
            NotFoundError: If there is no such version.
            DatabaseError: If the model is archived.
        """
        self._transport.delete_version(self._key, check_id("version", version))
        self._take(self._transport.get_model(self._key))

    # -- metadata, description and labels ---------------------------------------------------------

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add to its metadata; of keys that are there already the values are replaced.

        Args:
            metadata: A dictionary that JSON can say.

        Raises:
            InvalidArgumentError: If it cannot.
            DatabaseError: If the model is archived.
        """
        self._take(self._transport.add_model_metadata(self._key, check_metadata(metadata)))

    def remove_metadata(self, keys: Iterable[str]) -> None:
        """Remove top-level keys from its metadata; those that are not there are skipped.

        Raises:
            InvalidArgumentError: If `keys` is not a list of texts (a ValueError, too).
            DatabaseError: If the model is archived.
        """
        self._take(self._transport.remove_model_metadata(self._key, check_keys("keys", keys)))

    def set_description(self, description: str) -> None:
        """Replace its description.

        Raises:
            DatabaseError: If the model is archived.
        """
        if not isinstance(description, str):
            raise InvalidArgumentError(f"description is {describe(description)}; expected a text")
        self._take(self._transport.update_model(self._key, description=description, labels=None))

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replace its labels.

        Raises:
            InvalidArgumentError: If `labels` is not a list of texts.
            DatabaseError: If the model is archived.
        """
        texts = check_keys("labels", labels)
        self._take(self._transport.update_model(self._key, description=None, labels=texts))

    def archive(self) -> None:
        """Put it away: it is shown, but not changed any more."""
        self._take(self._transport.set_model_archived(self._key, True))

    def unarchive(self) -> None:
        """Bring it back."""
        self._take(self._transport.set_model_archived(self._key, False))

    def delete(self) -> None:
        """Delete it and its versions. Checkpoints stay, and retention may delete them then."""
        self._transport.delete_model(self._key)

    @property
    def _key(self) -> str | int:
        """Its key in the store: a name may be given to another model, a number may not."""
        return self.name if self.model_id is None else self.model_id

    def _version(self, document: Document) -> Checkpoint:
        return Checkpoint.from_document(
            document["checkpoint"],
            self._transport,
            master=self.master,
            model_name=document["model_name"],
            model_version=document["number"],
        )

    def _take(self, document: Document) -> None:
        """Take over the values of a store's document."""
        self.name = document["name"]
        self.description = document["description"]
        self.creation_time = _time(document["created_at"])
        self.last_updated_time = _time(document["updated_at"])
        self.metadata = document["metadata"]
        self.model_id = document["id"]
        self.labels = document["labels"]
        self.archived = document["archived"]
        self.num_versions = document["num_versions"]


def _time(text: str | None) -> datetime.datetime | None:
    return None if text is None else datetime.datetime.fromisoformat(text)
