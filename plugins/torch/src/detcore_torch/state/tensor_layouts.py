"""Memory layouts of tensors: strides, alignment, and shared memory.

Libraries select their code, and thus the order of additions, by strides and alignment. A restored
tensor with the same numbers but another layout would give other results.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from detcore_torch.libraries import torch

ALIGNMENT = 64  # bytes; alignment of PyTorch's CPU allocator


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """The place of a tensor in memory.

    Attributes:
        block: Number of the memory block; overlapping tensors share a block.
        offset: Bytes from the start of the block, which is aligned, to the first element.
        strides: Steps to the next element along each axis, in elements.
    """

    block: int
    offset: int
    strides: Sequence[int]


def describe_layouts(tensors: Mapping[str, Any]) -> dict[str, Layout]:
    """Return the layouts of tensors, except of contiguous tensors with separate memory."""
    spans = []
    for name, tensor in tensors.items():
        if tensor.layout is torch.strided and tensor.numel():
            start = tensor.data_ptr()
            size = _count_bytes(tensor.shape, tensor.stride(), tensor.element_size())
            spans.append((str(tensor.device), start, start + size, name))
    blocks: list[dict[str, int]] = []  # offsets by name
    block_device, block_start, block_end = "", 0, 0
    for device, start, end, name in sorted(spans):
        if device != block_device or start >= block_end:
            # The address of the whole storage is left out: it differs between processes.
            offset = tensors[name].storage_offset() * tensors[name].element_size()
            block_device, block_start = device, start - offset % ALIGNMENT
            block_end = end
            blocks.append({})
        block_end = max(end, block_end)
        blocks[-1][name] = start - block_start
    unusual = [
        offsets
        for offsets in blocks
        if len(offsets) > 1
        or any(offsets.values())
        or not all(tensors[name].is_contiguous() for name in offsets)
    ]
    return {
        name: Layout(number, offset, tensors[name].stride())
        for number, offsets in enumerate(sorted(unusual, key=min))
        for name, offset in sorted(offsets.items())
    }


def place_tensors(tensors: Mapping[str, Any], layouts: Mapping[str, Layout]) -> dict[str, Any]:
    """Return copies of tensors with their layouts, in memory that PyTorch allocates.

    Raises:
        RuntimeError: If a layout does not fit.
    """
    sizes: dict[int, int] = collections.Counter()
    for name, layout in layouts.items():
        tensor = tensors[name]
        end = layout.offset + _count_bytes(tensor.shape, layout.strides, tensor.element_size())
        sizes[layout.block] = max(end, sizes[layout.block])
    blocks = {block: torch.empty(size, dtype=torch.uint8) for block, size in sizes.items()}
    placed = {}
    for name, tensor in tensors.items():
        if name not in layouts:
            placed[name] = tensor.clone()
            continue
        layout = layouts[name]
        memory = blocks[layout.block][layout.offset :]
        memory = memory[: len(memory) // tensor.element_size() * tensor.element_size()]
        placed[name] = memory.view(tensor.dtype).as_strided(tensor.shape, layout.strides)
        _without_repetitions(placed[name], layout).copy_(_without_repetitions(tensor, layout))
    return placed


def _count_bytes(shape: Sequence[int], strides: Sequence[int], element_size: int) -> int:
    """Return the bytes from a tensor's first element to the end of its last element."""
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return (last + 1) * element_size


def _without_repetitions(tensor: Any, layout: Layout) -> Any:
    """Return the part of an expanded tensor that exists in memory."""
    for axis, stride in enumerate(layout.strides):
        if stride == 0:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor
