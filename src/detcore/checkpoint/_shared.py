"""Download a checkpoint once for all workers of a node."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from detcore.checkpoint._commit import scratch_folder
from detcore.checkpoint._download import download_checkpoint
from detcore.checkpoint._manifest import Manifest, read_manifest
from detcore.checkpoint._transfer import TransferObserver
from detcore.checkpoint._verify import check_in_place
from detcore.errors import CheckpointError

if TYPE_CHECKING:
    from detcore.checkpoint._scan import Selector
    from detcore.distributed import DistributedContext
    from detcore.storage import StorageBackend

__all__ = ["download_shared", "restored", "together"]

T = TypeVar("T")


Exchange: TypeAlias = "Callable[[Any], list[Any]]"
"""An allgather among some workers: returns every worker's value in rank order."""


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
            folder = stack.enter_context(scratch_folder()) / uuid
            download_checkpoint(
                storage, uuid, folder, selector=wanted.__contains__, observer=observer
            )
            return folder

        yield together(exchange, fetch)[0]
        exchange(None)  # all workers have finished reading


def _alone(stuff: Any) -> list[Any]:
    return [stuff]


def _wanted(manifest: Manifest, selector: Selector | None) -> frozenset[str]:
    """Return the selected names; those of empty folders end in ``/``."""
    names = (*manifest.files, *(f"{name}/" for name in manifest.directories))
    return frozenset(name for name in names if selector is None or selector(name))
