"""Sum arrays over the workers of one machine, in shared memory.

Each worker writes its arrays, adds its part of all workers' arrays, and copies the whole sum.
Additions follow the order of the ranks, so the sum has the same bits on all workers and in every
run.
"""

from __future__ import annotations

import functools
import mmap
import os
import weakref
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from detcore.errors import CollectiveMismatchError

if TYPE_CHECKING:
    import numpy.typing as npt

    from detcore.core import DistributedContext

    Array = npt.NDArray[Any]


_PAGE = mmap.ALLOCATIONGRANULARITY
_SMALL_BYTES = 1 << 14  # smaller sums travel with the message that announces them


class SharedSum:
    """Sums of arrays over the workers of one machine. All workers call `sum_arrays` together.

    Args:
        distributed: The workers.
    """

    def __init__(self, distributed: DistributedContext) -> None:
        self._distributed = distributed
        # A row for each worker's arrays, and one for their sum.
        self._memory: Array = np.zeros((distributed.local_size + 1, 0), np.uint8)
        self._leases = _Leases()

    def sum_arrays(self, arrays: Sequence[Array], label: str) -> list[Array]:
        """Return the sums over the workers, in new arrays.

        Args:
            arrays: Arrays with the same shapes and types on all workers.
            label: Name of the arrays; the same on all workers.

        Raises:
            DistributedError: If not all workers reach this sum.
        """
        kinds = [(array.dtype.name, array.shape) for array in arrays]
        purpose = _make_fingerprint((label, *kinds))
        sums: list[Array] = list(arrays)
        for dtype in sorted({array.dtype.name for array in arrays}):
            indices = [index for index, (dtype_name, _) in enumerate(kinds) if dtype_name == dtype]
            total = self._sum_flat([arrays[index].reshape(-1) for index in indices], purpose)
            ends = np.cumsum([arrays[index].size for index in indices])
            for index, part in zip(indices, np.split(total, ends[:-1]), strict=True):
                sums[index] = part.reshape(arrays[index].shape)
        return sums

    def _sum_flat(self, parts: Sequence[Array], purpose: int) -> Array:
        """Return the sums of consecutive arrays of one type."""
        index, count = self._distributed.local_rank, self._distributed.local_size
        size_bytes = sum(part.nbytes for part in parts)
        if size_bytes <= _SMALL_BYTES:
            terms = self._exchange_values(purpose, np.concatenate(parts))
            return add_up(terms, np.empty_like(terms[0]))
        if size_bytes > self._memory.shape[1]:
            self._grow_memory(size_bytes)
        dtype = parts[0].dtype
        *slots, result = self._memory[:, :size_bytes].view(dtype)
        np.concatenate(parts, out=slots[index])
        self._exchange_values(purpose)
        part_range = slice(len(result) * index // count, len(result) * (index + 1) // count)
        add_up([slot[part_range] for slot in slots], result[part_range])
        self._exchange_values(purpose)
        total = self._leases.lease_memory(size_bytes).view(dtype)
        np.copyto(total, result)
        return total

    def _exchange_values(self, purpose: object, value: Any = None) -> list[Any]:
        """Return every worker's value, once all workers have called this for the same purpose."""
        rank = self._distributed.rank
        answers = self._distributed.allgather_local((rank, purpose, value))
        differing = tuple(other for other, other_purpose, _ in answers if other_purpose != purpose)
        if differing:
            raise CollectiveMismatchError(
                f"ranks {rank} and {differing[0]} sum different gradients at the same time.\n"
                "Their shapes or types differ, or the workers run different steps.\n"
                "All workers must build the same model and run the same steps.",
                ranks=differing,
            )
        return [value for _, _, value in answers]

    def _grow_memory(self, size_bytes: int) -> None:
        """Replace the memory by larger memory, which has no name and ends with its last user."""
        rows = self._distributed.local_size + 1
        length = rows * -(-size_bytes // _PAGE) * _PAGE
        is_first = self._distributed.local_rank == 0
        descriptor = os.memfd_create("detcore-sum") if is_first else -1
        if is_first:
            os.ftruncate(descriptor, length)
        (pid, number), *_ = self._exchange_values(("memory", length), (os.getpid(), descriptor))
        with open(f"/proc/{pid}/fd/{number}", "rb+") as file:
            memory = mmap.mmap(file.fileno(), length)
        self._memory = np.frombuffer(memory, np.uint8).reshape(rows, -1)
        self._exchange_values("mapped")
        if is_first:
            os.close(descriptor)


def add_up(terms: Sequence[Array], out: Array) -> Array:
    """Add two or more arrays of one type to `out`, in the given order, and return it."""
    # The optimizer's loss scale or the user handles overflows in gradients.
    with np.errstate(all="ignore"):
        np.add(terms[0], terms[1], out=out)
        for term in terms[2:]:
            np.add(out, term, out=out)
    return out


@functools.cache
def _make_fingerprint(kinds: tuple[object, ...]) -> int:
    return zlib.crc32(repr(kinds).encode())


class _Leases:
    """Memory that is reused once no reference to its arrays is left.

    New memory for every step would cost as much time as the sum, because the system clears each
    page.
    """

    def __init__(self) -> None:
        self._lent: list[tuple[mmap.mmap, weakref.ref[Array]]] = []

    def lease_memory(self, size_bytes: int) -> Array:
        """Return page-aligned memory. Arrays that view it keep it in use."""
        for index, (memory, reference) in enumerate(self._lent):
            if reference() is None and len(memory) >= size_bytes:
                del self._lent[index]
                break
        else:
            memory = mmap.mmap(-1, size_bytes)
        lease: Array = np.frombuffer(memory, np.uint8, size_bytes)
        self._lent.append((memory, weakref.ref(lease)))
        return lease
