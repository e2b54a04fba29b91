"""Queries on the model registry: named models with checkpoints as numbered versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select, update
from sqlalchemy.exc import IntegrityError

from detcore.contract.errors import CheckpointStateError, ConfigError, DatabaseError, NotFoundError
from detcore.contract.values import ModelOrderBy, ModelSortBy
from detcore.records.queries import Queries, check_json_metadata, check_strings, now
from detcore.records.record_classes import ModelRecord, ModelVersionRecord, read_rows
from detcore.records.schema import checkpoints, model_versions, models

_MODELS = select(
    models,
    select(func.count())
    .where(model_versions.c.model_id == models.c.id)
    .scalar_subquery()
    .label("num_versions"),
)
_LISTED = 20
_MAX_LETTERS = 512
_SORT_KEYS: dict[ModelSortBy, Any] = {
    ModelSortBy.UNSPECIFIED: lambda model: model.id,
    ModelSortBy.NAME: lambda model: (model.name.casefold(), model.name),
    ModelSortBy.DESCRIPTION: lambda model: (model.description.casefold(), model.name),
    ModelSortBy.CREATION_TIME: lambda model: (model.created_at, model.id),
    ModelSortBy.LAST_UPDATED_TIME: lambda model: (model.updated_at, model.id),
}


class ModelQueries(Queries):
    """Create, read, update and delete models and their versions.

    A model is identified by its name or its id. Every change is one transaction, also if other
    processes change the model concurrently.
    """

    def create_model(
        self,
        name: str,
        *,
        description: str = "",
        metadata: Mapping[str, object] | None = None,
        labels: Iterable[str] = (),
    ) -> ModelRecord:
        """Add a model.

        Args:
            name: Unique name; not empty.
            description: A short description.
            metadata: Custom metadata; JSON values.
            labels: Labels for searching.

        Raises:
            ConfigError: If the name is empty, or an argument has the wrong type.
            DatabaseError: If another model has this name.
        """
        _check_name(name)
        moment = now()
        try:
            with self._begin_write() as connection:
                created = connection.execute(
                    models.insert().values(
                        name=name,
                        description=description,
                        metadata=check_json_metadata(metadata or {}),
                        labels=check_strings("labels", labels),
                        archived=False,
                        last_number=0,
                        created_at=moment,
                        updated_at=moment,
                    )
                )
                model_id = int(created.inserted_primary_key[0])  # type: ignore[index]  # one row
                return _read_model(connection, model_id)
        except IntegrityError as error:
            raise DatabaseError(
                f"a model named {name!r} already exists.\n"
                "Register a new version of it, or choose another name."
            ) from error

    def get_model(self, model: str | int) -> ModelRecord:
        """Return a model.

        Raises:
            NotFoundError: If no model has this name or id; the message lists the models.
        """
        with self._begin_read() as connection:
            return _read_model(connection, model)

    def list_models(
        self,
        *,
        sort_by: ModelSortBy | int = ModelSortBy.NAME,
        order_by: ModelOrderBy | int = ModelOrderBy.ASCENDING,
        name: str = "",
        description: str = "",
        labels: Iterable[str] = (),
        archived: bool | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[ModelRecord]:
        """Return models.

        Args:
            sort_by: Sort key; case is ignored.
            order_by: Sort direction.
            name: Return only models whose name contains this string, ignoring case.
            description: Return only models whose description contains this string, ignoring case.
            labels: Return only models with all these labels.
            archived: True for archived models, False for the others; None = all.
            limit: Maximum number of results; None = all.
            offset: Number of results to skip.
        """
        required_labels = set(check_strings("labels", labels))
        # Filtered in Python, because databases differ for letters beyond ASCII.
        records = [
            model
            for model in self._read_all(ModelRecord, _MODELS)
            if name.casefold() in model.name.casefold()
            and description.casefold() in model.description.casefold()
            and archived in (None, model.archived)
            and required_labels <= set(model.labels)
        ]
        descending = ModelOrderBy(order_by) is ModelOrderBy.DESCENDING
        records.sort(key=_SORT_KEYS[ModelSortBy(sort_by)], reverse=descending)
        return records[offset : None if limit is None else offset + limit]

    def update_model(
        self,
        model: str | int,
        *,
        name: str | None = None,
        description: str | None = None,
        labels: Iterable[str] | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> ModelRecord:
        """Change a model's name, description, labels or metadata. None keeps a value.

        Args:
            model: Name or id of the model.
            name: The new name.
            description: A short description.
            labels: Replace all labels of the model.
            metadata: Replaces all metadata of the model.

        Raises:
            NotFoundError: If the model does not exist.
            DatabaseError: If it is archived, or another model has the new name.
        """
        changes: dict[str, object] = {}
        if name is not None:
            _check_name(name)
            changes["name"] = name
        if description is not None:
            changes["description"] = description
        if labels is not None:
            changes["labels"] = check_strings("labels", labels)
        if metadata is not None:
            changes["metadata"] = check_json_metadata(metadata)
        try:
            with self._begin_write() as connection:
                row = _open_row(connection, model)
                return _change_model(connection, row.id, changes)
        except IntegrityError as error:
            raise DatabaseError(
                f"a model named {name!r} already exists; choose another name"
            ) from error

    def set_model_archived(self, model: str | int, archived: bool) -> ModelRecord:
        """Archive or unarchive a model. Repeating the call has no effect.

        Raises:
            NotFoundError: If the model does not exist.
        """
        with self._begin_write() as connection:
            row = _locked_row(connection, model)
            return _change_model(connection, row.id, {"archived": archived})

    def add_model_metadata(self, model: str | int, metadata: Mapping[str, object]) -> ModelRecord:
        """Add to a model's metadata. Values of existing keys are replaced.

        Raises:
            NotFoundError: If the model does not exist.
            ConfigError: If `metadata` is not a dictionary of JSON values.
            DatabaseError: If the model is archived.
        """
        added = check_json_metadata(metadata)
        with self._begin_write() as connection:
            row = _open_row(connection, model)
            merged = {**row.metadata, **added}
            return _change_model(connection, row.id, {"metadata": merged})

    def remove_model_metadata(self, model: str | int, keys: Iterable[str]) -> ModelRecord:
        """Remove top-level keys from a model's metadata. Missing keys are ignored.

        Raises:
            NotFoundError: If the model does not exist.
            ConfigError: If `keys` is not a list of strings.
            DatabaseError: If the model is archived.
        """
        removed = set(check_strings("keys", keys))
        with self._begin_write() as connection:
            row = _open_row(connection, model)
            metadata = {key: value for key, value in row.metadata.items() if key not in removed}
            return _change_model(connection, row.id, {"metadata": metadata})

    def delete_model(self, model: str | int) -> None:
        """Delete a model and its versions. Its checkpoints stay, but retention may delete them.

        Raises:
            NotFoundError: If the model does not exist.
        """
        with self._begin_write() as connection:
            row = _locked_row(connection, model)
            connection.execute(delete(model_versions).where(model_versions.c.model_id == row.id))
            connection.execute(delete(models).where(models.c.id == row.id))

    def register_version(
        self,
        model: str | int,
        checkpoint_uuid: str,
        *,
        name: str = "",
        comment: str = "",
        notes: str = "",
        metadata: Mapping[str, object] | None = None,
    ) -> ModelVersionRecord:
        """Register a checkpoint as the next version of a model.

        A registered checkpoint is exempt from retention and cannot be deleted.

        Raises:
            NotFoundError: If the model or the checkpoint does not exist.
            CheckpointStateError: If the checkpoint is not COMPLETED.
            DatabaseError: If the model is archived.
        """
        moment = now()
        document = check_json_metadata(metadata or {})
        with self._begin_write() as connection:
            row = _open_row(connection, model)
            _require_whole(connection, checkpoint_uuid)
            number = row.last_number + 1
            connection.execute(
                model_versions.insert().values(
                    model_id=row.id,
                    number=number,
                    checkpoint_uuid=checkpoint_uuid,
                    name=name,
                    comment=comment,
                    notes=notes,
                    metadata=document,
                    created_at=moment,
                    updated_at=moment,
                )
            )
            _change_model(connection, row.id, {"last_number": number})
            return _read_version(connection, row, number)

    def get_version(self, model: str | int, number: int = 0) -> ModelVersionRecord | None:
        """Return a version of a model.

        Args:
            model: Name or id of the model.
            number: Version number; 0 or -1 means the latest version.

        Returns:
            The version, or None if it does not exist.

        Raises:
            NotFoundError: If the model does not exist.
        """
        with self._begin_read() as connection:
            row = _model_row(connection, model)
            query = select(model_versions).where(model_versions.c.model_id == row.id)
            if number not in (0, -1):
                query = query.where(model_versions.c.number == number)
            newest = connection.execute(query.order_by(model_versions.c.number.desc()).limit(1))
            records = read_rows(ModelVersionRecord, newest)
        return records[0] if records else None

    def list_versions(
        self, model: str | int, *, order_by: ModelOrderBy = ModelOrderBy.DESCENDING
    ) -> list[ModelVersionRecord]:
        """Return the versions of a model sorted by number, by default the newest first.

        Raises:
            NotFoundError: If the model does not exist.
        """
        number = model_versions.c.number
        descending = ModelOrderBy(order_by) is ModelOrderBy.DESCENDING
        with self._begin_read() as connection:
            row = _model_row(connection, model)
            rows = connection.execute(
                select(model_versions)
                .where(model_versions.c.model_id == row.id)
                .order_by(number.desc() if descending else number.asc())
            )
            return read_rows(ModelVersionRecord, rows)

    def update_version(
        self,
        model: str | int,
        number: int,
        *,
        name: str | None = None,
        comment: str | None = None,
        notes: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> ModelVersionRecord:
        """Change a version's name, comment, notes or metadata. None keeps a value.

        Args:
            model: Name or id of the model.
            number: Version number.
            name: The new name.
            comment: One-line description.
            notes: Longer notes.
            metadata: Replaces all metadata of the version.

        Raises:
            NotFoundError: If the model or the version does not exist.
            DatabaseError: If the model is archived.
        """
        texts = {"name": name, "comment": comment, "notes": notes}
        changes: dict[str, object] = {k: v for k, v in texts.items() if v is not None}
        if metadata is not None:
            changes["metadata"] = check_json_metadata(metadata)
        with self._begin_write() as connection:
            row = _open_row(connection, model)
            connection.execute(
                update(model_versions)
                .where(model_versions.c.model_id == row.id, model_versions.c.number == number)
                .values(**changes, updated_at=now())
            )
            record = _read_version(connection, row, number)
            _change_model(connection, row.id, {})
            return record

    def delete_version(self, model: str | int, number: int) -> None:
        """Delete a version. Its number is never reused, and its checkpoint stays.

        Raises:
            NotFoundError: If the model or the version does not exist.
            DatabaseError: If the model is archived.
        """
        with self._begin_write() as connection:
            row = _open_row(connection, model)
            _read_version(connection, row, number)
            connection.execute(
                delete(model_versions).where(
                    model_versions.c.model_id == row.id, model_versions.c.number == number
                )
            )
            _change_model(connection, row.id, {})


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"model name must be a non-empty string, got {name!r}")
    if len(name) > _MAX_LETTERS:
        raise ConfigError(
            f"model name has {len(name)} characters; expected at most {_MAX_LETTERS}: "
            f"{name[:40]!r}...\nUse a shorter name, and put details into the description."
        )


def _model_row(connection: Connection, model: str | int, *, lock: bool = False) -> Row[Any]:
    column = models.c.id if isinstance(model, int) else models.c.name
    query = _MODELS.where(column == model)
    row = connection.execute(query.with_for_update() if lock else query).fetchone()
    if row is not None:
        return row
    names = connection.execute(select(models.c.name).order_by(models.c.id.desc())).scalars().all()
    more = ", ..." if len(names) > _LISTED else ""
    listed = ", ".join(repr(name) for name in names[:_LISTED]) + more if names else "none yet"
    raise NotFoundError(f"no model {model!r} is registered.\nRegistered models: {listed}.")


def _locked_row(connection: Connection, model: str | int) -> Row[Any]:
    """Return a model's row. On a database server, it is locked until the transaction ends."""
    return _model_row(connection, model, lock=True)


def _open_row(connection: Connection, model: str | int) -> Row[Any]:
    """Return a locked row of a model that is not archived."""
    row = _locked_row(connection, model)
    if row.archived:
        raise DatabaseError(
            f"model {row.name!r} is archived and cannot be changed.\n"
            f"Unarchive it first: detcore model unarchive {row.name}"
        )
    return row


def _read_model(connection: Connection, model: str | int) -> ModelRecord:
    return read_rows(ModelRecord, [_model_row(connection, model)])[0]


def _read_version(connection: Connection, row: Row[Any], number: int) -> ModelVersionRecord:
    rows = connection.execute(
        select(model_versions).where(
            model_versions.c.model_id == row.id, model_versions.c.number == number
        )
    ).fetchall()
    if rows:
        return read_rows(ModelVersionRecord, rows)[0]
    numbers = connection.execute(
        select(model_versions.c.number)
        .where(model_versions.c.model_id == row.id)
        .order_by(model_versions.c.number)
    ).scalars()
    listed = ", ".join(map(str, numbers)) or "none yet"
    raise NotFoundError(f"model {row.name!r} has no version {number}; versions: {listed}")


def _change_model(
    connection: Connection, model_id: int, changes: Mapping[str, object]
) -> ModelRecord:
    connection.execute(
        update(models).where(models.c.id == model_id).values(**changes, updated_at=now())
    )
    return _read_model(connection, model_id)


def _require_whole(connection: Connection, uuid: str) -> None:
    """Reject a checkpoint that is not COMPLETED, and lock it until the transaction ends."""
    row = connection.execute(
        select(checkpoints.c.state).where(checkpoints.c.uuid == uuid).with_for_update()
    ).fetchone()
    if row is None:
        raise NotFoundError(
            f"no checkpoint {uuid!r} is recorded, so it cannot be registered.\n"
            "List checkpoints: detcore checkpoint list"
        )
    if row.state != "COMPLETED":
        raise CheckpointStateError(
            f"checkpoint {uuid} is {row.state}; only COMPLETED checkpoints can be registered.\n"
            "Choose another checkpoint: detcore checkpoint list"
        )
