"""The model registry: named models, and checkpoints as their numbered versions."""

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
    """Models and their versions.

    A model is named by its name, or by its id. Every change is one transaction, whatever other
    processes do at the same time.
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
            name: Unique; not empty.
            description: A short description.
            metadata: The user's own; JSON values.
            labels: Words to find it by.

        Raises:
            ConfigError: If the name is empty, or something is of the wrong kind.
            DatabaseError: If there is a model of that name.
        """
        _check_name(name)
        moment = now()
        try:
            with self._write() as connection:
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
                f"there is a model {name!r} already; names are unique.\n"
                "Register a new version of it, or choose another name."
            ) from error

    def get_model(self, model: str | int) -> ModelRecord:
        """Return a model.

        Raises:
            NotFoundError: If no model has that name or id; the message lists the known ones.
        """
        with self._read() as connection:
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
            sort_by: The sort key; case is ignored.
            order_by: In which direction.
            name: Only those with this in their name, in capitals or not.
            description: Only those with this in their description, in capitals or not.
            labels: Only those that have all of these.
            archived: Only those that are archived, or that are not; None = all.
            limit: Maximum number of results; None = all.
            offset: How many are left out at the beginning.
        """
        wanted = set(check_strings("labels", labels))
        # Databases differ in how they compare letters beyond ASCII; Python does it one way.
        found = [
            model
            for model in self._read_all(ModelRecord, _MODELS)
            if name.casefold() in model.name.casefold()
            and description.casefold() in model.description.casefold()
            and archived in (None, model.archived)
            and wanted <= set(model.labels)
        ]
        descending = ModelOrderBy(order_by) is ModelOrderBy.DESCENDING
        found.sort(key=_SORT_KEYS[ModelSortBy(sort_by)], reverse=descending)
        return found[offset : None if limit is None else offset + limit]

    def update_model(
        self,
        model: str | int,
        *,
        name: str | None = None,
        description: str | None = None,
        labels: Iterable[str] | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> ModelRecord:
        """Change a model's name, description, labels or metadata; None keeps a value.

        Args:
            model: Which.
            name: The new name.
            description: A short description.
            labels: Replace all that it has.
            metadata: Replaces all that it has.

        Raises:
            NotFoundError: If there is no such model.
            DatabaseError: If it is archived, or another model has the new name.
        """
        changed: dict[str, object] = {}
        if name is not None:
            _check_name(name)
            changed["name"] = name
        if description is not None:
            changed["description"] = description
        if labels is not None:
            changed["labels"] = check_strings("labels", labels)
        if metadata is not None:
            changed["metadata"] = check_json_metadata(metadata)
        try:
            with self._write() as connection:
                row = _open_row(connection, model)
                return _change_model(connection, row.id, changed)
        except IntegrityError as error:
            raise DatabaseError(f"there is a model {name!r} already; names are unique") from error

    def set_model_archived(self, model: str | int, archived: bool) -> ModelRecord:
        """Put a model away, or bring it back; doing so again is fine.

        Raises:
            NotFoundError: If there is no such model.
        """
        with self._write() as connection:
            row = _locked_row(connection, model)
            return _change_model(connection, row.id, {"archived": archived})

    def add_model_metadata(self, model: str | int, metadata: Mapping[str, object]) -> ModelRecord:
        """Add to a model's metadata; of keys that are there already the values are replaced.

        Raises:
            NotFoundError: If there is no such model.
            ConfigError: If `metadata` is no dictionary of JSON values.
            DatabaseError: If the model is archived.
        """
        added = check_json_metadata(metadata)
        with self._write() as connection:
            row = _open_row(connection, model)
            merged = {**row.metadata, **added}
            return _change_model(connection, row.id, {"metadata": merged})

    def remove_model_metadata(self, model: str | int, keys: Iterable[str]) -> ModelRecord:
        """Remove top-level keys from a model's metadata; those that are not there are skipped.

        Raises:
            NotFoundError: If there is no such model.
            ConfigError: If `keys` is not a list of texts.
            DatabaseError: If the model is archived.
        """
        gone = set(check_strings("keys", keys))
        with self._write() as connection:
            row = _open_row(connection, model)
            left = {key: value for key, value in row.metadata.items() if key not in gone}
            return _change_model(connection, row.id, {"metadata": left})

    def delete_model(self, model: str | int) -> None:
        """Delete a model and its versions; the checkpoints stay, and are exempt no more.

        Raises:
            NotFoundError: If there is no such model.
        """
        with self._write() as connection:
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
        """Make a checkpoint the next version of a model.

        From now on it is exempt from retention, and deleting it is refused.

        Raises:
            NotFoundError: If there is no such model or checkpoint.
            CheckpointStateError: If the checkpoint is not whole: being saved, damaged, deleted.
            DatabaseError: If the model is archived.
        """
        moment = now()
        document = check_json_metadata(metadata or {})
        with self._write() as connection:
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
            model: Which.
            number: Which version; 0 or -1 means the latest.

        Returns:
            None if there is no such version, or none at all.

        Raises:
            NotFoundError: If there is no such model.
        """
        with self._read() as connection:
            row = _model_row(connection, model)
            query = select(model_versions).where(model_versions.c.model_id == row.id)
            if number not in (0, -1):
                query = query.where(model_versions.c.number == number)
            newest = connection.execute(query.order_by(model_versions.c.number.desc()).limit(1))
            found = read_rows(ModelVersionRecord, newest)
        return found[0] if found else None

    def list_versions(
        self, model: str | int, *, order_by: ModelOrderBy = ModelOrderBy.DESCENDING
    ) -> list[ModelVersionRecord]:
        """Return the versions of a model by number, the newest first unless told otherwise.

        Raises:
            NotFoundError: If there is no such model.
        """
        number = model_versions.c.number
        descending = ModelOrderBy(order_by) is ModelOrderBy.DESCENDING
        with self._read() as connection:
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
        """Change a version's name, comment, notes or metadata; None keeps a value.

        Args:
            model: Which model.
            number: Which version.
            name: The new name.
            comment: A line about it.
            notes: More about it.
            metadata: Replaces all of its metadata.

        Raises:
            NotFoundError: If there is no such model or version.
            DatabaseError: If the model is archived.
        """
        given = {"name": name, "comment": comment, "notes": notes}
        changed: dict[str, object] = {k: v for k, v in given.items() if v is not None}
        if metadata is not None:
            changed["metadata"] = check_json_metadata(metadata)
        with self._write() as connection:
            row = _open_row(connection, model)
            connection.execute(
                update(model_versions)
                .where(model_versions.c.model_id == row.id, model_versions.c.number == number)
                .values(**changed, updated_at=now())
            )
            record = _read_version(connection, row, number)
            _change_model(connection, row.id, {})
            return record

    def delete_version(self, model: str | int, number: int) -> None:
        """Delete a version; its number is not given again, and its checkpoint stays.

        Raises:
            NotFoundError: If there is no such model or version.
            DatabaseError: If the model is archived.
        """
        with self._write() as connection:
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
        raise ConfigError(f"a model needs a name; it is {name!r}")
    if len(name) > _MAX_LETTERS:
        raise ConfigError(
            f"the name of a model has {len(name)} characters, which is more than {_MAX_LETTERS}: "
            f"{name[:40]!r}...\nPut what is long into its description."
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
    raise NotFoundError(f"no model {model!r} is registered.\nModels there: {listed}.")


def _locked_row(connection: Connection, model: str | int) -> Row[Any]:
    """Return a model's row; on servers it is locked until the transaction ends."""
    return _model_row(connection, model, lock=True)


def _open_row(connection: Connection, model: str | int) -> Row[Any]:
    """Return a locked row of a model that may be changed."""
    row = _locked_row(connection, model)
    if row.archived:
        raise DatabaseError(
            f"the model {row.name!r} is archived, so it is not changed any more.\n"
            "Bring it back first (unarchive)."
        )
    return row


def _read_model(connection: Connection, model: str | int) -> ModelRecord:
    return read_rows(ModelRecord, [_model_row(connection, model)])[0]


def _read_version(connection: Connection, row: Row[Any], number: int) -> ModelVersionRecord:
    found = connection.execute(
        select(model_versions).where(
            model_versions.c.model_id == row.id, model_versions.c.number == number
        )
    ).fetchall()
    if found:
        return read_rows(ModelVersionRecord, found)[0]
    numbers = connection.execute(
        select(model_versions.c.number)
        .where(model_versions.c.model_id == row.id)
        .order_by(model_versions.c.number)
    ).scalars()
    listed = ", ".join(map(str, numbers)) or "none yet"
    raise NotFoundError(f"the model {row.name!r} has no version {number}; versions: {listed}")


def _change_model(
    connection: Connection, model_id: int, changed: Mapping[str, object]
) -> ModelRecord:
    connection.execute(
        update(models).where(models.c.id == model_id).values(**changed, updated_at=now())
    )
    return _read_model(connection, model_id)


def _require_whole(connection: Connection, uuid: str) -> None:
    """Refuse a checkpoint that is not COMPLETED; it stays so until the transaction ends."""
    row = connection.execute(
        select(checkpoints.c.state).where(checkpoints.c.uuid == uuid).with_for_update()
    ).fetchone()
    if row is None:
        raise NotFoundError(
            f"no checkpoint {uuid!r} is recorded, so it cannot become a version of a model.\n"
            "List them: detcore checkpoint list"
        )
    if row.state != "COMPLETED":
        raise CheckpointStateError(
            f"checkpoint {uuid} is {row.state}; only one that is COMPLETED can become a version "
            "of a model.\nChoose another one: detcore checkpoint list"
        )
