"""Restore the verified files of a complete checkpoint.

The files are copied to a directory of the user, once for all workers of a node, or are used in
place. A copy also contains the manifest, which proves that the copy is complete.
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
    list_stored_sizes,
    raise_faults,
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
    """Selects the workers that download. With one worker, both modes are the same."""

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    """One worker of each node downloads for all workers of the node (default)."""

    NoSharedDownload = "NO_SHARED_DOWNLOAD"
    """Every worker downloads separately."""


def download_checkpoint(
    storage: StorageBackend,
    uuid: str,
    folder: Path,
    *,
    selector: Selector | None = None,
    observer: TransferObserver | None = None,
) -> Manifest:
    """Copy a checkpoint's files to a directory, and check the size and digest of each file.

    The files are first downloaded next to their destination, so a failure leaves the directory as
    it was. If the directory exists, they are then moved into it one by one. Files of the same names
    are replaced, other files stay.

    Args:
        storage: Storage of the checkpoint.
        uuid: UUID of the checkpoint.
        folder: The target; missing parents are created.
        selector: Selects the files to download. Called with names relative to the checkpoint; names
            of empty directories end in ``/``. Default: all files.
        observer: Receives the progress, or None.

    Raises:
        CheckpointNotFoundError: If the checkpoint does not exist.
        CheckpointCorruptError: If a file is missing or has changed; the message names it.
        InvalidCheckpointError: If a file of the checkpoint would replace a directory or vice versa,
            or would be written through a link that leads out of the directory.
        UnsafePathError: If the file system does not distinguish two names in the checkpoint.
        StorageFullError: If the disk has too little space.
    """
    there = list_stored_sizes(storage, uuid)
    manifest = read_manifest(storage, uuid, sizes=there)
    folder = folder.absolute()
    names = [name for name in manifest.files if selector is None or selector(name)]
    empty = [name for name in manifest.directories if selector is None or selector(f"{name}/")]
    raise_faults(storage, uuid, compare_sizes(storage, manifest, names, there))
    exists = os.path.lexists(folder)
    if exists:
        _check_target(folder, names, empty)
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
    # An existing directory may be a mount point, so the files are staged inside it.
    token = f".tmp-{uuids.uuid4().hex}"
    temporary = folder / token if exists else folder.with_name(folder.name + token)
    try:
        temporary.mkdir()
        _check_space(manifest, names, temporary)
        _download_files(storage, manifest, names, temporary, observer)
        _check_names(temporary, names, empty)
        for name in empty:
            (temporary / name).mkdir(parents=True, exist_ok=True)
        if exists:
            _move_files(temporary, folder, names, empty)
        else:
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def is_complete_copy(folder: Path, uuid: str) -> bool:
    """Whether a directory contains all files of a checkpoint, according to the manifest in it.

    Every file is read and compared with its digest. ``metadata.json`` is not compared, because
    users may change it in a copy.

    Raises:
        InvalidCheckpointError: If the directory holds another checkpoint.
    """
    path = folder / MANIFEST_FILE
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(mode) or os.path.getsize(path) > MAX_MANIFEST_BYTES:
        return False
    data = path.read_bytes()
    _check_same_checkpoint(data, uuid, folder)
    try:
        manifest = decode_manifest(data, uuid, str(folder))
    except CheckpointCorruptError:
        return False
    return _is_copy_intact(folder, manifest)


def copy_checkpoint(
    storage: StorageBackend, uuid: str, folder: Path, *, observer: TransferObserver | None = None
) -> Manifest:
    """Make a directory a complete copy of a checkpoint, unless it is one already.

    The manifest is written last, so that an interrupted copy is recognized as incomplete. Other
    files in the directory stay.

    Args:
        storage: Storage of the checkpoint.
        uuid: UUID of the checkpoint.
        folder: The target; missing parents are created.
        observer: Receives the progress, or None.

    Raises:
        CheckpointNotFoundError: If the checkpoint does not exist.
        DetcoreError: As for `download_checkpoint`.
    """
    manifest = read_manifest(storage, uuid)
    if not (folder.is_dir() and _is_copy_intact(folder, manifest)):
        try:
            manifest = download_checkpoint(storage, uuid, folder, observer=observer)
        except OSError as error:
            # Another process has created the directory concurrently; its files are replaced.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not folder.is_dir():
                raise
            manifest = download_checkpoint(storage, uuid, folder, observer=observer)
    replace_file(folder / MANIFEST_FILE, encode_manifest(manifest))
    return manifest


@dataclasses.dataclass(frozen=True, slots=True)
class _WorkerFailure:
    """Failure of a worker."""

    kind: type[CheckpointError]
    message: str


def run_on_all(exchange: Exchange, action: Callable[[], T]) -> list[T]:
    """Run an action on every worker; return the results of all of them.

    If the action fails on one worker, this raises on all workers: the original exception on the
    failed worker, and a description of it on the others. It is also a barrier.

    Args:
        exchange: Allgather among the workers, such as ``distributed.allgather``.
        action: This worker's action.

    Raises:
        CheckpointError: If the action failed on another worker.
        Exception: The exception of this worker's action.
    """
    failure: Exception | None = None
    result: Any = None
    try:
        result = action()
    except Exception as error:  # noqa: BLE001  (raised below, after notifying the others)
        failure = error
        kind = type(error) if isinstance(error, CheckpointError) else CheckpointError
        result = _WorkerFailure(kind, str(error) or repr(error))
    results = exchange(result)
    if failure is not None:
        raise failure
    for rank, other_result in enumerate(results):
        if isinstance(other_result, _WorkerFailure):
            raise other_result.kind(f"on worker {rank}: {other_result.message}")
    return results


def download_shared(
    storage: StorageBackend,
    uuid: str,
    folder: Path,
    distributed: DistributedContext | None,
    *,
    selector: Selector | None = None,
    observer: TransferObserver | None = None,
) -> None:
    """Download a checkpoint, once for all workers of a node that name the same directory.

    See `CheckpointContext.download`. A failure is raised on all workers that share the download.

    Args:
        storage: Storage of the checkpoint.
        uuid: UUID of the checkpoint.
        folder: The target.
        distributed: The workers that may share the download within each node; None for only this
            worker.
        selector: Selects this worker's files.
        observer: Receives the progress, or None.
    """
    if distributed is None or distributed.local_size == 1:
        download_checkpoint(storage, uuid, folder, selector=selector, observer=observer)
        return
    exchange = distributed.allgather_local
    target = os.path.realpath(folder)
    selections = run_on_all(
        exchange, lambda: (target, _select_names(read_manifest(storage, uuid), selector))
    )
    sharing = [
        index for index, (other_target, _) in enumerate(selections) if other_target == target
    ]

    def download() -> None:
        if sharing[0] == distributed.local_rank:
            names = frozenset[str]().union(*(selections[index][1] for index in sharing))
            download_checkpoint(
                storage, uuid, folder, selector=names.__contains__, observer=observer
            )

    run_on_all(exchange, download)


@contextlib.contextmanager
def open_restored(
    storage: StorageBackend,
    uuid: str,
    distributed: DistributedContext | None,
    *,
    selector: Selector | None = None,
    observer: TransferObserver | None = None,
) -> Iterator[Path]:
    """Yield a directory with a checkpoint's files: the checkpoint itself, or a copy of it.

    See `CheckpointContext.restore_path`; arguments as for `download_shared`.
    """
    is_first = distributed is None or distributed.local_rank == 0
    exchange: Exchange = _gather_alone if distributed is None else distributed.allgather_local
    # Every worker reads the manifest inside the exchange, so that a failure reaches all workers.
    manifest: Manifest | None = None

    def read_selection() -> tuple[bool, frozenset[str]]:
        nonlocal manifest
        manifest = read_manifest(storage, uuid)
        is_direct = selector is None and storage.direct_path(uuid) is not None
        return is_direct, _select_names(manifest, selector)

    selections = run_on_all(exchange, read_selection)
    direct = storage.direct_path(uuid)
    if direct is not None and all(is_direct for is_direct, _ in selections):

        def check_files() -> None:
            if is_first and manifest is not None:
                check_in_place(storage, manifest, observer=observer)

        run_on_all(exchange, check_files)
        yield direct
        return
    selected_names = frozenset[str]().union(*(names for _, names in selections))

    with contextlib.ExitStack() as stack:

        def download_files() -> Path:
            if not is_first:
                return Path()  # the first worker's directory is used
            from detcore.storage import scratch_directory

            folder = stack.enter_context(scratch_directory()) / uuid
            download_checkpoint(
                storage, uuid, folder, selector=selected_names.__contains__, observer=observer
            )
            return folder

        yield run_on_all(exchange, download_files)[0]
        exchange(None)  # all workers have finished reading


def _download_files(
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
    except FileNotFoundError as error:  # the checkpoint was deleted during the download
        there = list_stored_sizes(storage, manifest.uuid)
        missing = [Fault(name, "is missing") for name in names if name not in there]
        raise_faults(storage, manifest.uuid, missing, error)
        raise
    raise_faults(storage, manifest.uuid, compare_digests(manifest, digests))


def _check_space(manifest: Manifest, names: list[str], folder: Path) -> None:
    """Raise an error if the download does not fit, before it fills the disk."""
    total = sum(manifest.files[name].size for name in names)
    free = shutil.disk_usage(folder).free
    if total > free:
        raise StorageFullError(
            f"checkpoint {manifest.uuid} has {total} bytes, but only {free} bytes are free at "
            f"{folder.parent}.\nNothing was downloaded.\n"
            "Free some space, choose another directory, or select fewer files (selector).",
            missing_bytes=total - free,
        )


def _check_names(folder: Path, names: list[str], empty: list[str]) -> None:
    """Raise an error if the file system does not distinguish names of the checkpoint."""
    num_files = sum(path.is_file() for path in folder.rglob("*"))
    if num_files < len(names) or any((folder / name).is_file() for name in empty):
        raise UnsafePathError(
            f"{len(names)} files were written, but {num_files} exist: the file system of "
            f"{folder.parent} does not distinguish names that differ by case or accents.\n"
            "Choose a directory on another file system, or select fewer files (selector)."
        )


def _check_target(folder: Path, names: list[str], empty: list[str]) -> None:
    """Raise an error, before any file is moved, if a download would replace unrelated files."""
    if not folder.is_dir():
        raise InvalidCheckpointError(
            f"the checkpoint cannot be downloaded to {folder}, which is a file.\n"
            "Choose a directory, or a path that does not exist yet."
        )
    root = os.path.realpath(folder)
    for name in (*names, *empty):
        path = folder / name
        parent = os.path.realpath(path.parent)
        if os.path.commonpath([root, parent]) != root:
            raise InvalidCheckpointError(
                f"the checkpoint's {name} cannot be written to {folder}: a link leads out of "
                f"the directory, to {parent}.\nDownload to another directory, or remove the link."
            )
        blocking = [parent for parent in path.parents if parent.is_file()]
        if name in empty and path.is_file():
            blocking.append(path)
        if name not in empty and path.is_dir():
            blocking.append(path)
        if blocking:
            kind = "a directory" if blocking[0].is_dir() else "a file"
            raise InvalidCheckpointError(
                f"the checkpoint's {name} cannot be written to {folder}: {blocking[0]} is {kind}.\n"
                "Download to another directory, or move it away."
            )


def _move_files(source: Path, folder: Path, names: list[str], empty: list[str]) -> None:
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source / name, target)
    for name in empty:
        (folder / name).mkdir(parents=True, exist_ok=True)


def _check_same_checkpoint(data: bytes, uuid: str, folder: Path) -> None:
    try:
        other_uuid = parse_object(data).get("uuid")
    except (ValueError, RecursionError):
        return  # a damaged copy is downloaded again
    if isinstance(other_uuid, str) and other_uuid != uuid:
        raise InvalidCheckpointError(
            f"{folder} contains another checkpoint, {other_uuid}, which would be mixed with "
            f"{uuid}.\nChoose another directory, or remove the files in it."
        )


def _is_copy_intact(folder: Path, manifest: Manifest) -> bool:
    return all(_is_file_intact(folder, manifest, name) for name in manifest.files) and all(
        (folder / name).is_dir() for name in manifest.directories
    )


def _is_file_intact(folder: Path, manifest: Manifest, name: str) -> bool:
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


def _gather_alone(value: Any) -> list[Any]:
    return [value]


def _select_names(manifest: Manifest, selector: Selector | None) -> frozenset[str]:
    """Return the selected names; names of empty directories end in ``/``."""
    names = (*manifest.files, *(f"{name}/" for name in manifest.directories))
    return frozenset(name for name in names if selector is None or selector(name))
