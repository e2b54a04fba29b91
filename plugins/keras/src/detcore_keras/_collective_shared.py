"""Sum arrays over the workers of one machine, in shared memory.

Each worker writes its arrays, adds its part of all workers' arrays, and copies the whole sum out.
Additions follow the order of the ranks, so the sum has the same bits on all workers and in every
run.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import weakref
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from detcore_keras._collective_connect import connect

if TYPE_CHECKING:
    import numpy.typing as npt

    from detcore.core import DistributedContext

    Array = npt.NDArray[Any]


_LINE = 64  # bytes; TensorFlow uses an array aligned to it without a copy
_PAGE = mmap.ALLOCATIONGRANULARITY
_SMALL = 1 << 16  # bytes; up to this size, adding everything everywhere beats meeting twice
_BLOCK = 1 << 18  # bytes; the amount added at a time stays in the processor's cache


class SharedSum:
    """Sums of arrays over the workers of one machine; all call the same methods together.

    Args:
        distributed: Connects them; used by the constructor only.
        timeout_s: How long to wait for a worker that is alive, in seconds.
    """

    def __init__(self, distributed: DistributedContext, *, timeout_s: float) -> None:
        self._index = distributed.local_rank
        self._count = distributed.local_size
        self._links, self._descriptor = connect(distributed, timeout_s=timeout_s)
        self._capacity = 0  # bytes of one worker's arrays
        self._memory: Array = np.zeros(0, np.uint8)
        self._number = 0
        self._layouts: dict[Any, _Layout] = {}
        self._places: dict[tuple[int, int], list[Array]] = {}
        self._leases = _Leases()
        self._grow(_PAGE)

    def sum(self, arrays: Sequence[Array], label: str) -> list[Array]:
        """Return the sums over the workers, in new arrays.

        Args:
            arrays: The same shapes and types on all workers.
            label: Their name; the same on all workers.

        Raises:
            DistributedError: As `Links.meet`; or if this worker has left.
        """
        self._links.check()
        layout = self._layout(arrays, label)
        self._number += 1
        if layout.size > self._capacity:
            self._grow(layout.size, layout)
        is_small = layout.size <= _SMALL
        # Small sums alternate between two places: a slow worker may still read the last one.
        start = self._number % 2 * self._count * _SMALL if is_small else self._small_area
        step = _SMALL if is_small else self._capacity
        slots = [start + index * step for index in range(self._count)]
        for place, array in zip(self._places_of(layout, slots[self._index]), arrays, strict=True):
            np.copyto(place, array)
        self._meet(layout)
        total = self._leases.take(layout.size)
        if is_small:
            self._add(layout, slots, total, 0, 1)
        else:
            end = self._small_area + self._count * self._capacity
            result = self._memory[end : end + layout.size]
            self._add(layout, slots, result, self._index, self._count)
            self._meet(layout)
            np.copyto(total, result)
        return layout.split(total)

    def close(self) -> None:
        """Leave; the others get an error if they wait for this worker."""
        self._links.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        self._places = {}
        self._memory = np.zeros(0, np.uint8)

    @property
    def _small_area(self) -> int:
        return 2 * self._count * _SMALL

    def _meet(self, layout: _Layout) -> None:
        self._links.meet(self._number, layout.fingerprint, layout.size)

    def _grow(self, size: int, layout: _Layout | None = None) -> None:
        """Enlarge the memory; every worker does so at the same sum, or their sums differ."""
        capacity = -(-size // _PAGE) * _PAGE
        length = self._small_area + (self._count + 1) * capacity
        if self._index == 0:
            os.ftruncate(self._descriptor, length)
        self._links.meet(self._number, layout.fingerprint if layout else 0, length)
        self._places = {}
        self._memory = np.frombuffer(mmap.mmap(self._descriptor, length), np.uint8)
        self._capacity = capacity

    def _add(self, layout: _Layout, slots: list[int], out: Array, part: int, parts: int) -> None:
        """Add one of several parts of the slots."""
        for dtype, start, stop in layout.regions:
            lines = (stop - start) // _LINE
            first = start + lines * part // parts * _LINE
            last = start + lines * (part + 1) // parts * _LINE
            for begin in range(first, last, _BLOCK):
                end = min(begin + _BLOCK, last)
                terms = [self._memory[s + begin : s + end].view(dtype) for s in slots]
                add_up(terms, out[begin:end].view(dtype))

    def _layout(self, arrays: Sequence[Array], label: str) -> _Layout:
        key = (label, *((array.dtype, array.shape) for array in arrays))
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = _Layout.of(arrays, label)
        return layout

    def _places_of(self, layout: _Layout, start: int) -> list[Array]:
        places = self._places.get((id(layout), start))
        if places is None:
            places = layout.split(self._memory[start : start + layout.size])
            self._places[id(layout), start] = places
        return places


def add_up(terms: Sequence[Array], out: Array) -> None:
    """Add arrays of one type in the given order; `out` may be the first of them."""
    # Overflows in gradients are for the optimizer's loss scale or the user to notice.
    with np.errstate(all="ignore"):
        np.add(terms[0], terms[1], out=out)
        for term in terms[2:]:
            np.add(out, term, out=out)


@dataclasses.dataclass(frozen=True, slots=True)
class _Layout:
    """Consecutive positions of arrays in memory, grouped by type."""

    kinds: list[tuple[Any, tuple[int, ...], int]]  # dtype, shape and offset of each array
    regions: list[tuple[Any, int, int]]  # dtype, start and end of each group
    size: int
    fingerprint: int

    @classmethod
    def of(cls, arrays: Sequence[Array], label: str) -> _Layout:
        names = [array.dtype.name for array in arrays]
        offsets = [0] * len(arrays)
        regions = []
        end = 0
        for name in sorted(set(names)):
            start = end
            for index in (i for i, own in enumerate(names) if own == name):
                offsets[index] = end
                end += -(-arrays[index].nbytes // _LINE) * _LINE
            regions.append((arrays[names.index(name)].dtype, start, end))
        kinds = [(a.dtype, a.shape, offset) for a, offset in zip(arrays, offsets, strict=True)]
        text = repr((label, names, [array.shape for array in arrays]))
        return cls(kinds, regions, end, zlib.crc32(text.encode()))

    def split(self, memory: Array) -> list[Array]:
        """Return the arrays in memory of this layout."""
        return [np.ndarray(shape, dtype, memory, offset) for dtype, shape, offset in self.kinds]


class _Leases:
    """Memory that is reused once no reference to its arrays is left.

    New memory for every step would cost as much as the sum: the system clears each page.
    """

    def __init__(self) -> None:
        self._lent: list[tuple[mmap.mmap, weakref.ref[Array]]] = []

    def take(self, size: int) -> Array:
        """Return `size` bytes, aligned to a page; arrays made from them keep them in use."""
        for index, (memory, reference) in enumerate(self._lent):
            if reference() is None and len(memory) >= size:
                del self._lent[index]
                break
        else:
            memory = mmap.mmap(-1, max(size, _PAGE))
        lease: Array = np.frombuffer(memory, np.uint8, size)
        self._lent.append((memory, weakref.ref(lease)))
        return lease
