"""Validate the contents of a manifest: metadata when it is saved, each field when it is read.

The author of a manifest that is read may be malicious: its checksum proves that it is unchanged,
not who wrote it. A matching checksum is therefore no reason to trust any field.
"""

from __future__ import annotations

import datetime
import json
import math
import operator
import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import InvalidCheckpointError, UnsafePathError
from detcore.contract.values import TensorInfo

if TYPE_CHECKING:
    from detcore.storage import FileDigest


MANIFEST_FILE = "manifest.json"
AUDIT_FILE = "audit.json"
"""File of a checkpoint with digests of the state, for each worker."""
ALGORITHM = "xxh3_128"
"""Name of the digest algorithm in manifests."""
_NUM_DIGITS = 32
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def new_id() -> str:
    """Return a new UUID, without using the global random generators."""
    return str(uuid.uuid4())


def check_id(storage_id: str) -> str:
    """Return an identifier unchanged, if it names a single directory of the storage.

    Raises:
        UnsafePathError: If it could name another path.
    """
    if isinstance(storage_id, str) and _ID.fullmatch(storage_id):
        return storage_id
    raise UnsafePathError(
        f"{storage_id!r} is not a checkpoint's UUID.\n"
        "A UUID consists of letters, digits, '-', '_' and '.'.\n"
        "List checkpoints with:  detcore checkpoint list"
    )


def list_parent_names(name: str) -> Iterator[str]:
    """Yield the directories that contain a name, innermost first."""
    while name := name.rpartition("/")[0]:
        yield name


MAX_MANIFEST_BYTES = 64 << 20
"""Maximum size of a manifest that is written or read; enough for about 400,000 files."""
_MAX_NUMBER = 2**63 - 1  # largest integer in databases and file systems
_MAX_DIGITS = 4000  # Python's limit of 4300 can be disabled
_MAX_BITS = 13_000  # largest saved integer; has fewer digits than _MAX_DIGITS
_MAX_DEPTH = 66  # maximum nesting of metadata when reading
_MAX_SAVED_DEPTH = 64
_MAX_AXES = 254  # TensorFlow's limit; NumPy's is lower
_MAX_TEXT = 1024
_HEX = frozenset("0123456789abcdef")
_KINDS: dict[type, str] = {
    type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string",
    list: "a list", dict: "an object",
}  # fmt: skip


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse one JSON object, more strictly than `json` does.

    Raises:
        ValueError: If it is not UTF-8 or not JSON, repeats a key, or has a number that is not
            finite (``NaN``, ``1e400``) or has thousands of digits.
        RecursionError: If it is nested too deeply.
    """
    value = json.loads(
        data.decode("utf-8"),  # `json` would also accept UTF-16 and UTF-32
        object_pairs_hook=_build_object,
        parse_constant=_refuse_constant,
        parse_float=_parse_float,
        parse_int=_parse_int,
    )
    if not isinstance(value, dict):
        raise ValueError(f"it holds {_describe_kind(value)} where an object is expected")
    return value


def read_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a manifest, each checked, by their names in `Manifest`.

    Raises:
        ValueError: If one is missing or cannot be right; the message names it.
        UnsafePathError: If a name is unsafe.
    """
    files, folders = _read_files(fields), _read_directories(fields)
    _check_name_conflicts(files, folders)
    return {
        "steps_completed": _check_whole_number(
            _get_field(fields, "steps_completed"), "its field 'steps_completed' is"
        ),
        "metadata": _read_metadata(fields),
        "created": _read_creation_time(fields),
        "files": files,
        "directories": folders,
        "parent": None if _get_field(fields, "parent") is None else check_id(fields["parent"]),
        "versions": _read_versions(fields),
        "tensors": _read_tensors(fields, files),
    }


def _read_files(fields: Mapping[str, Any]) -> dict[str, FileDigest]:
    from detcore.storage import FileDigest, check_key

    algorithm = _get_field(fields, "digest", str)
    if algorithm != ALGORITHM:
        raise ValueError(
            f"its files are digested with {format_value(algorithm)}; this release knows {ALGORITHM}"
        )
    files = {}
    for name, entry in _get_field(fields, "files", dict).items():
        check_key(name)
        where = f"its entry of the file {format_value(name)}"
        _check_kind(entry, dict, where)
        for key in ("size", ALGORITHM):
            if key not in entry:
                raise ValueError(f"{where} has no {key!r}")
        size = _check_whole_number(entry["size"], f"{where} says that its size is")
        files[name] = FileDigest(size, _check_digest(entry[ALGORITHM], where))
    return files


def _read_directories(fields: Mapping[str, Any]) -> tuple[str, ...]:
    from detcore.storage import check_key

    names = _get_field(fields, "directories", list)
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"its field 'directories' holds {_describe_kind(name)}, not a name")
        check_key(name)
    return tuple(names)


def _check_name_conflicts(files: Iterable[str], folders: Iterable[str]) -> None:
    """Check that files, empty directories and the manifest do not collide."""
    file_names = {*files, MANIFEST_FILE}
    if MANIFEST_FILE in files:
        raise ValueError(f"it names itself, {MANIFEST_FILE}, as a file of the checkpoint")
    for name in folders:
        if name in file_names:
            raise ValueError(f"{format_value(name)} is both a file and a directory")
    for name in (*files, *folders):
        for folder in list_parent_names(name):
            if folder in file_names:
                raise ValueError(
                    f"{format_value(folder)} is both a file and a directory: it also holds "
                    f"{format_value(name)}"
                )


def _read_creation_time(fields: Mapping[str, Any]) -> datetime.datetime:
    text = _get_field(fields, "created", str)
    try:
        created = datetime.datetime.fromisoformat(text)
    except ValueError:
        created = None
    if created is None or created.tzinfo is None:
        raise ValueError(
            f"its field 'created' is {format_value(text)}, which is not a time with a time zone"
        )
    return created


def _read_metadata(fields: Mapping[str, Any]) -> dict[str, Any]:
    metadata: dict[str, Any] = _get_field(fields, "metadata", dict)
    level: list[Any] = [metadata]
    for _ in range(_MAX_DEPTH):
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, dict | list)
        ]
        if not level:
            return metadata
    raise ValueError(f"its metadata is nested more than {_MAX_DEPTH} times")


def _read_versions(fields: Mapping[str, Any]) -> dict[str, str]:
    versions: dict[str, str] = _get_field(fields, "versions", dict)
    for text in (*versions, *versions.values()):  # shown to users
        if not isinstance(text, str) or not text.isprintable() or len(text) > _MAX_TEXT:
            raise ValueError(
                f"its field 'versions' holds {format_value(text)}, which is not a name or a version"
            )
    return versions


def _read_tensors(fields: Mapping[str, Any], files: Collection[str]) -> tuple[TensorInfo, ...]:
    tensors = _get_field(fields, "tensors", list) if "tensors" in fields else ()
    return tuple(
        _read_tensor(tensor, f"its tensor {index}", files) for index, tensor in enumerate(tensors)
    )


def _read_tensor(each: Any, where: str, files: Collection[str]) -> TensorInfo:
    _check_kind(each, dict, where)
    texts = {}
    for key in ("name", "dtype", "file"):
        value = each.get(key)
        if not isinstance(value, str) or len(value) > _MAX_TEXT:
            raise ValueError(
                f"{where} has the {key} {format_value(value)}, which is not a short string"
            )
        texts[key] = value
    if texts["file"] not in files:
        raise ValueError(
            f"{where} is in {format_value(texts['file'])}, which is not one of its files"
        )
    shape = each.get("shape")
    if not isinstance(shape, list):
        raise ValueError(f"{where} has the shape {format_value(shape)}, which is not a list")
    if len(shape) > _MAX_AXES:
        raise ValueError(f"{where} has {len(shape)} axes; no framework supports so many")
    axes = tuple(_check_whole_number(axis, f"{where} has an axis of length") for axis in shape)
    return TensorInfo(shape=axes, **texts)


def _get_field(fields: Mapping[str, Any], name: str, kind: type | None = None) -> Any:
    if name not in fields:
        raise ValueError(f"its field {name!r} is missing")
    if kind is not None:
        _check_kind(fields[name], kind, f"its field {name!r}")
    return fields[name]


def _check_kind(value: object, kind: type, where: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{where} is {_describe_kind(value)}, not {_KINDS[kind]}")


def _check_whole_number(value: Any, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_NUMBER:
        return value
    raise ValueError(f"{where} {format_value(value)}; expected a whole number from 0 to 2**63 - 1")


def _check_digest(value: Any, where: str) -> str:
    if isinstance(value, str) and len(value) == _NUM_DIGITS and _HEX.issuperset(value):
        return value
    raise ValueError(
        f"{where} has the digest {format_value(value)}; {ALGORITHM} has {_NUM_DIGITS} digits of "
        "0-9 and a-f"
    )


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys: set[str] = set()
        for key, _ in pairs:
            if key in keys:
                raise ValueError(f"it has the key {format_value(key)} twice")
            keys.add(key)
    return value


def _refuse_constant(text: str) -> float:
    raise ValueError(f"it holds {text}, which is not valid JSON")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it holds the number {format_value(text)}, which is too large")
    return value


def _parse_int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"it holds a number of {len(text)} digits")
    return int(text)


def _describe_kind(value: object) -> str:
    return _KINDS[type(value)]


def format_value(value: Any) -> str:
    """Return a value in a form safe for messages: short, without control characters."""
    text = _describe_kind(value) if isinstance(value, list | dict) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return metadata as plain JSON values, with `steps_completed` as an int.

    NumPy scalars become numbers, tuples become lists.

    Raises:
        InvalidCheckpointError: If `steps_completed` is missing or not a whole number, or a value is
            not JSON; the message names the key.
    """
    plain = convert_metadata(metadata)
    if "steps_completed" not in plain:
        keys = ", ".join(repr(key) for key in plain) or "nothing"
        raise InvalidCheckpointError(
            f"the checkpoint's metadata has no 'steps_completed' (it has: {keys}).\n"
            "Training resumes from the checkpoint with the most steps. Nothing was written.\n"
            "Pass metadata={'steps_completed': <batches trained so far>}."
        )
    plain["steps_completed"] = _check_steps(plain["steps_completed"])
    return plain


def convert_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return metadata as plain JSON values; `steps_completed` is optional in a worker's part.

    Raises:
        InvalidCheckpointError: If a value is not JSON; the message names the key.
    """
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise InvalidCheckpointError(
            f"checkpoint metadata is a {type(metadata).__name__}; expected a dictionary, such as "
            "{'steps_completed': 100}"
        )
    plain: dict[str, Any] = _to_plain(metadata, "metadata", 0)
    return plain


def _check_steps(value: Any) -> int:
    if not isinstance(value, bool):
        try:
            steps = operator.index(value)
        except TypeError:
            pass
        else:
            if 0 <= steps <= _MAX_NUMBER:
                return steps
    raise InvalidCheckpointError(
        f"metadata['steps_completed'] is {value!r}; expected a whole number, 0 to 2**63 - 1.\n"
        "Pass the number of batches trained so far. Nothing was written."
    )


def _to_plain(value: Any, where: str, depth: int) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise _create_json_error(where, "...", f"it has more than {_MAX_BITS} bits")
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        raise _create_json_error(
            where, value, "JSON has no NaN and no infinity; use None or a string"
        )
    if depth > _MAX_SAVED_DEPTH:
        raise _create_json_error(where[:80], "...", "it is nested too deeply, or contains itself")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _create_json_error(f"{where}[{key!r}]", key, "keys must be strings")
        return {key: _to_plain(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return _to_plain(value.item(), where, depth + 1)  # a NumPy scalar or array without axes
    raise _create_json_error(where, value, f"a {type(value).__name__} is not JSON")


def _create_json_error(where: str, value: object, reason: str) -> InvalidCheckpointError:
    text = repr(value)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return InvalidCheckpointError(
        f"{where} is {text}, which cannot be saved: {reason}.\n"
        "Metadata consists of strings, numbers, booleans, None, lists and dictionaries of these.\n"
        "Write other values to a file of the checkpoint. Nothing was written."
    )
