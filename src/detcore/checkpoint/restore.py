"""Restore the files of a checkpoint, complete and verified, or not at all.

They go to a folder of the user, once for all workers of a node, or are used where they are. A copy
also holds the manifest, which proves that it is complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import os
import shutil
import stat
import uuid as uuids
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from detcore.atomic_files import replace_file
from detcore.checkpoint.manifest import (
    METADATA_FILE,
    Manifest,
    decode_manifest,
    encode_manifest,
    read_manifest,
)
from detcore.checkpoint.manifest_fields import MANIFEST_FILE, MAX_MANIFEST_BYTES, parse_object
from detcore.checkpoint.verify import (
    Fault,
    check_in_place,
    compare_digests,
    compare_sizes,
    refuse,
    stored_sizes,
)
from detcore.contract.errors import (
    CheckpointCorruptError,
    CheckpointError,
    InvalidCheckpointError,
    StorageFullError,
    UnsafePathError,
)

if TYPE_CHECKING:
    from detcore.checkpoint.commit import Selector
    from detcore.distributed import DistributedContext
    from detcore.storage import StorageBackend, TransferObserver


T = TypeVar("T")


Exchange: TypeAlias = "Callable[[Any], list[Any]]"
"""An allgather among some workers: returns every worker's value in rank order."""


class DownloadMode(enum.Enum):
    """Which workers download; with one worker, both modes are the same."""

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    """One worker of each node downloads for all of them (default)."""

    NoSharedDownload = "NO_SHARED_DOWNLOAD"
    """Every worker downloads for itself."""


def download_checkpoint(
    storage: StorageBackend,
    uuid: str,
    folder: Path,
    *,
    selector: Selector | None = None,
    observer: TransferObserver | None = None,
) -> Manifest:
    """Copy a checkpoint's files to a folder, checking size and digest of each.

    The files are assembled next to their destination first, so a failure leaves the folder as it
    was. If the folder exists, they are then moved into it one by one: files of the same names are
    replaced, others stay.

    Args:
        storage: Storage of the checkpoint.
        uuid: UUID of the checkpoint.
        folder: The target; missing parents are created.
        selector: Selects the files to take; default: all. Called with names below the checkpoint,
            those of empty folders end in ``/``.
        observer: Receives the progress, or None.

    Raises:
        CheckpointNotFoundError: If the checkpoint does not exist.
        CheckpointCorruptError: If a file is missing or has changed; the message names it.
        InvalidCheckpointError: If a file of the checkpoint would replace a folder or vice versa,
            or go through a link that leads out of the folder.
        UnsafePathError: If the file system does not distinguish two of its names.
        StorageFullError: If the disk has too little space.
    """
    there = stored_sizes(storage, uuid)
    manifest = read_manifest(storage, uuid, sizes=there)
    folder = folder.absolute()
    names = [name for name in manifest.files if selector is None or selector(name)]
    empty = [name for name in manifest.directories if selector is None or selector(f"{name}/")]
    refuse(storage, uuid, compare_sizes(storage, manifest, names, there))
    exists = os.path.lexists(folder)
    if exists:
        _check_room(folder, names, empty)
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
    # Staged inside an existing folder, which may be a separate mount point.
    token = f".tmp-{uuids.uuid4().hex}"
    temporary = folder / token if exists else folder.with_name(folder.name + token)
    try:
        temporary.mkdir()
        _check_space(manifest, names, temporary)
        _fetch(storage, manifest, names, temporary, observer)
        _check_names(temporary, names, empty)
        for name in empty:
            (temporary / name).mkdir(parents=True, exist_ok=True)
        if exists:
            _move_into(temporary, folder, names, empty)
        else:
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def is_complete_copy(folder: Path, uuid: str) -> bool:
    """Whether a folder holds all files of a checkpoint, according to the manifest in it.

    Every file is read and compared with its digest, except ``metadata.json``, which users may
    change in a copy.

    Raises:
        InvalidCheckpointError: If the folder holds another checkpoint.
    """
    path = folder / MANIFEST_FILE
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(mode) or os.path.getsize(path) > MAX_MANIFEST_BYTES:
        return False
    data = path.read_bytes()
    _refuse_other(data, uuid, folder)
    try:
        manifest = decode_manifest(data, uuid, str(folder))
    except CheckpointCorruptError:
        return False
    return _matches(folder, manifest)


def copy_checkpoint(
    storage: StorageBackend, uuid: str, folder: Path, *, observer: TransferObserver | None = None
) -> Manifest:
    """Make a folder a complete copy of a checkpoint; correct files in it are kept.

    Files are written first and the manifest last, so an interrupted copy is not mistaken for a
    complete one. Other files in the folder stay.

    Args:
        storage: Storage of the checkpoint.
        uuid: UUID of the checkpoint.
        folder: The target; missing parents are created.
        observer: Receives the progress, or None.

    Raises:
        CheckpointNotFoundError: If the checkpoint does not exist.
        DetcoreError: As `download_checkpoint`.
    """
    manifest = read_manifest(storage, uuid)
    if not (folder.is_dir() and _matches(folder, manifest)):
        try:
            manifest = download_checkpoint(storage, uuid, folder, observer=observer)
        except OSError as error:
            # Another process created the folder at the same time; its files are replaced.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not folder.is_dir():
                raise
            manifest = download_checkpoint(storage, uuid, folder, observer=observer)
    replace_file(folder / MANIFEST_FILE, encode_manifest(manifest))
    return manifest


@dataclasses.dataclass(frozen=True, slots=True)
class _Failed:
    """Failure of a worker."""

    kind: type[CheckpointError]
    text: str


def together(exchange: Exchange, action: Callable[[], T]) -> list[T]:
    """Run an action on every worker; return the results of all of them.

    If it fails on one worker, it fails on all: there with the original exception, elsewhere with
    one that describes it. It is also a barrier.

    Args:
        exchange: Allgather among the workers, such as ``distributed.allgather``.
        action: This worker's action.

    Raises:
        CheckpointError: If it failed on another worker.
        Exception: The exception of this worker's own action.
    """
    failure: Exception | None = None
    mine: Any = None
    try:
        mine = action()
    except Exception as error:  # noqa: BLE001  (raised below, after notifying the others)
        failure = error
        kind = type(error) if isinstance(error, CheckpointError) else CheckpointError
        mine = _Failed(kind, str(error) or repr(error))
    answers = exchange(mine)
    if failure is not None:
        raise failure
    for index, answer in enumerate(answers):
        if isinstance(answer, _Failed):
            raise answer.kind(f"on worker {index}: {answer.text}")
    return answers


def download_shared(
    storage: StorageBackend,
    uuid: str,
    folder: Path,
    distributed: DistributedContext | None,
    *,
    selector: Selector | None = None,
    observer: TransferObserver | None = None,
) -> None:
    """Download a checkpoint; among workers of a node that name one folder, the first does it.

    See `CheckpointContext.download`. If it fails, it fails on all workers that share it.

    Args:
        storage: Storage of the checkpoint.
        uuid: UUID of the checkpoint.
        folder: The target.
        distributed: The workers that may share it, on each node separately; None: only this one.
        selector: Selects this worker's files.
        observer: Receives the progress, or None.
    """
    if distributed is None or distributed.local_size == 1:
        download_checkpoint(storage, uuid, folder, selector=selector, observer=observer)
        return
    exchange = distributed.allgather_local
    place = os.path.realpath(folder)
    wishes = together(exchange, lambda: (place, _wanted(read_manifest(storage, uuid), selector)))
    sharing = [index for index, (other, _) in enumerate(wishes) if other == place]

    def download() -> None:
        if sharing[0] == distributed.local_rank:
            wanted = frozenset[str]().union(*(wishes[index][1] for index in sharing))
            download_checkpoint(
                storage, uuid, folder, selector=wanted.__contains__, observer=observer
            )

    together(exchange, download)


@contextlib.contextmanager
def restored(
    storage: StorageBackend,
    uuid: str,
    distributed: DistributedContext | None,
    *,
    selector: Selector | None = None,
    observer: TransferObserver | None = None,
) -> Iterator[Path]:
    """Yield a folder with a checkpoint's files: the checkpoint itself, or a copy of it.

    See `CheckpointContext.restore_path`; arguments as for `download_shared`.
    """
    is_first = distributed is None or distributed.local_rank == 0
    exchange: Exchange = _alone if distributed is None else distributed.allgather_local
    # Every worker reads it here, so that a failure reaches all of them.
    manifest: Manifest | None = None

    def look() -> tuple[bool, frozenset[str]]:
        nonlocal manifest
        manifest = read_manifest(storage, uuid)
        is_direct = selector is None and storage.direct_path(uuid) is not None
        return is_direct, _wanted(manifest, selector)

    wishes = together(exchange, look)
    direct = storage.direct_path(uuid)
    if direct is not None and all(is_direct for is_direct, _ in wishes):

        def check() -> None:
            if is_first and manifest is not None:
                check_in_place(storage, manifest, observer=observer)

        together(exchange, check)
        yield direct
        return
    wanted = frozenset[str]().union(*(names for _, names in wishes))

    with contextlib.ExitStack() as stack:

        def fetch() -> Path:
            if not is_first:
                return Path()  # the first worker's folder is used
            from detcore.storage import scratch_directory

            folder = stack.enter_context(scratch_directory()) / uuid
            download_checkpoint(
                storage, uuid, folder, selector=wanted.__contains__, observer=observer
            )
            return folder

        yield together(exchange, fetch)[0]
        exchange(None)  # all workers have finished reading


def _fetch(
    storage: StorageBackend,
    manifest: Manifest,
    names: list[str],
    target: Path,
    observer: TransferObserver | None,
) -> None:
    from detcore.storage import track_transfer

    total = sum(manifest.files[name].size for name in names)
    try:
        with track_transfer(observer, f"downloading {manifest.uuid[:8]}", total) as progress:
            digests = storage.get_tree(
                [(target / name, f"{manifest.uuid}/{name}") for name in names],
                progress=progress,
            )
    except FileNotFoundError as error:  # it was deleted during the download
        there = stored_sizes(storage, manifest.uuid)
        missing = [Fault(name, "is missing") for name in names if name not in there]
        refuse(storage, manifest.uuid, missing, error)
        raise
    refuse(storage, manifest.uuid, compare_digests(manifest, digests))


def _check_space(manifest: Manifest, names: list[str], folder: Path) -> None:
    """Refuse a download that does not fit, before it fills the disk."""
    total = sum(manifest.files[name].size for name in names)
    free = shutil.disk_usage(folder).free
    if total > free:
        raise StorageFullError(
            f"checkpoint {manifest.uuid} has {total} bytes, and there is room for {free} at "
            f"{folder.parent}.\nNothing was downloaded.\n"
            "Make room there, choose another folder, or take fewer files (selector).",
            missing_bytes=total - free,
        )


def _check_names(folder: Path, names: list[str], empty: list[str]) -> None:
    """Refuse a copy in which the file system took several names for one."""
    num_files = sum(path.is_file() for path in folder.rglob("*"))
    if num_files < len(names) or any((folder / name).is_file() for name in empty):
        raise UnsafePathError(
            f"{len(names)} files were written, but {num_files} are there: the file system of "
            f"{folder.parent} takes names for one that differ by case or accents.\n"
            "Choose another folder, on a file system that tells them apart, or fewer files "
            "(selector)."
        )


def _check_room(folder: Path, names: list[str], empty: list[str]) -> None:
    """Refuse, before moving anything, a download that would have to remove something else."""
    if not folder.is_dir():
        raise InvalidCheckpointError(
            f"the checkpoint cannot be downloaded to {folder}, which is a file.\n"
            "Name a folder, or a path where there is nothing yet."
        )
    root = os.path.realpath(folder)
    for name in (*names, *empty):
        path = folder / name
        parent = os.path.realpath(path.parent)
        if os.path.commonpath([root, parent]) != root:
            raise InvalidCheckpointError(
                f"the checkpoint's {name} cannot be put into {folder}: a link there leads out of "
                f"it, to {parent}.\nDownload to another folder, or remove the link."
            )
        blocking = [parent for parent in path.parents if parent.is_file()]
        if name in empty and path.is_file():
            blocking.append(path)
        if name not in empty and path.is_dir():
            blocking.append(path)
        if blocking:
            kind = "a folder" if blocking[0].is_dir() else "a file"
            raise InvalidCheckpointError(
                f"the checkpoint's {name} cannot be put into {folder}: {blocking[0]} is {kind}.\n"
                "Download to another folder, or move that away."
            )


def _move_into(source: Path, folder: Path, names: list[str], empty: list[str]) -> None:
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source / name, target)
    for name in empty:
        (folder / name).mkdir(parents=True, exist_ok=True)


def _refuse_other(data: bytes, uuid: str, folder: Path) -> None:
    try:
        found = parse_object(data).get("uuid")
    except (ValueError, RecursionError):
        return  # damaged: it will be downloaded again
    if isinstance(found, str) and found != uuid:
        raise InvalidCheckpointError(
            f"{folder} holds another checkpoint, {found}; {uuid} would be mixed with it.\n"
            "Name another folder, or remove that one."
        )


def _matches(folder: Path, manifest: Manifest) -> bool:
    return all(_is_same(folder, manifest, name) for name in manifest.files) and all(
        (folder / name).is_dir() for name in manifest.directories
    )


def _is_same(folder: Path, manifest: Manifest, name: str) -> bool:
    from detcore.storage import digest_file

    path, expected = folder / name, manifest.files[name]
    try:
        mode = os.stat(path).st_mode
        if name == METADATA_FILE:
            return stat.S_ISREG(mode)
        if not stat.S_ISREG(mode) or os.path.getsize(path) != expected.size:
            return False
        return digest_file(path) == expected
    except OSError:
        return False


def _alone(stuff: Any) -> list[Any]:
    return [stuff]


def _wanted(manifest: Manifest, selector: Selector | None) -> frozenset[str]:
    """Return the selected names; those of empty folders end in ``/``."""
    names = (*manifest.files, *(f"{name}/" for name in manifest.directories))
    return frozenset(name for name in names if selector is None or selector(name))
