"""The file of a bundle: its content, and how it is packed and read."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import pydantic

from detcore.errors import RunError
from detcore.types import TrialInfo

RECORD, DIGESTS, LOG = "bundle.json", "digests-1.bin", "log.txt"
CODE, STACKS = "code/", "stacks/"
_KNOWN = re.compile(rf"{RECORD}|{DIGESTS}|{LOG}|({CODE}|{STACKS})[^\0\\:]+")
_UUID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_MOST_FILES, _MOST_BYTES = 20_000, 64 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BundleRecord:
    """The description of a failure, ``bundle.json``.

    Attributes:
        format: Version of the format.
        trial: The fields of the trial's `detcore.types.TrialInfo`, secrets masked.
        error: As `detcore.hooks.TrialFailure`, like the fields that follow.
        fault: The same, with the name of the file alone.
        step: The last step that began; 0: not known.
        masked: Names of the settings that are secrets.
        left_out: Files that had no room.
    """

    format: Literal[1] = 1
    trial: dict[str, Any]
    error: str
    fault: str | None
    exit_code: int
    steps_completed: int
    storage_url: str
    checkpoint: str | None = pydantic.Field(pattern=_UUID)
    checkpoint_steps: int
    step: int = 0
    is_hang: bool = False
    masked: list[str]
    left_out: list[str]


# Raised by zipfile for a file that is no archive or that it cannot read, and by wrong fields.
_NOT_A_BUNDLE = (
    zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
_ADAPTER = pydantic.TypeAdapter(BundleRecord)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle that was read.

    Attributes:
        record: The failure.
        info: Its trial.
        files: The other files by name.
    """

    record: BundleRecord
    info: TrialInfo
    files: Mapping[str, bytes]

    def unpack(self, prefix: str, folder: Path) -> None:
        """Write the files below a prefix into a folder."""
        for name, content in self.files.items():
            if name.startswith(prefix):
                path = folder / name.removeprefix(prefix)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


def pack(path: Path, record: BundleRecord, files: Mapping[str, bytes]) -> None:
    """Write a bundle; only its owner may read it."""
    descriptor, beside = tempfile.mkstemp(prefix=".bundle-", dir=path.parent)
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            archive.writestr(RECORD, _ADAPTER.dump_json(record, indent=2))
            for name, content in files.items():
                archive.writestr(name, content)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def read_bundle(path: Path) -> Bundle:
    """Read a bundle, without writing anything.

    Raises:
        RunError: If it is damaged, of another version, or not a bundle.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            files = dict(_members(path, archive))
        record = _ADAPTER.validate_json(files.pop(RECORD, b""))
        known = {field.name for field in dataclasses.fields(TrialInfo)}
        info = TrialInfo(**{key: value for key, value in record.trial.items() if key in known})
        if not isinstance(info.config["entrypoint"], str | list) or info.settings is None:
            raise TypeError("it has no entrypoint or no settings")
    except RunError:
        raise  # one of ours, which is also a RuntimeError
    except OSError as error:
        raise RunError(f"the bundle {path} cannot be read: {error}") from error
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or RECORD
        raise _damaged(path, f"{place} in {RECORD}: {first['msg']}") from error
    except _NOT_A_BUNDLE as error:
        raise _damaged(path, str(error) or type(error).__name__) from error
    return Bundle(record=record, info=info, files=files)


def _members(path: Path, archive: zipfile.ZipFile) -> Iterator[tuple[str, bytes]]:
    """Yield the files of an archive; its own words about sizes are not relied on."""
    members = [member for member in archive.infolist() if not member.is_dir()]
    if len(members) > _MOST_FILES or len({member.filename for member in members}) < len(members):
        raise _damaged(path, f"it has {len(members)} files, or one of them twice")
    left = _MOST_BYTES
    for member in members:
        name, mode = member.filename, member.external_attr >> 16
        parts = PurePosixPath(name).parts
        if not _KNOWN.fullmatch(name) or ".." in parts or "/".join(parts) != name:
            raise _damaged(path, f"{name!r} does not belong into a bundle")
        if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
            raise _damaged(path, f"{name!r} is a link or a special file")
        if member.flag_bits & 1:
            raise _damaged(path, f"{name!r} is encrypted")
        with archive.open(member) as file:
            content = file.read(left + 1)
        left -= len(content)
        if left < 0:
            raise _damaged(path, f"it unpacks to more than {_MOST_BYTES >> 20} MiB")
        yield name, content


def _damaged(path: Path, why: str) -> RunError:
    return RunError(
        f"{path} cannot be used as a bundle: {why}.\n"
        "It is truncated, damaged, or was written by another version or program.\n"
        "Copy it again from the machine where the trial failed."
    )
