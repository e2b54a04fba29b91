"""The values of several ranks in one frame: small ones in its body, large ones in shared memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from detcore.distributed._values import (
    LARGE,
    Packed,
    packed_from_bytes,
    packed_from_descriptor,
)
from detcore.distributed._wire import MAX_DESCRIPTORS, Channel, Frame

__all__ = ["read_parts", "send_parts"]


def send_parts(
    channel: Channel,
    kind: int,
    meta: dict[str, Any],
    parts: Mapping[int, Packed],
    *,
    deadline: float,
) -> None:
    """Send a frame with values.

    Args:
        channel: Where to.
        kind: Kind of the frame.
        meta: Its other contents.
        parts: Index in the group -> value.
        deadline: On the clock of ``time.monotonic``.

    Raises:
        LinkLost: If the other end is gone.
    """
    pieces: list[Any] = []
    descriptors: list[int] = []
    table = []
    for index, part in parts.items():
        descriptor = None
        if channel.is_unix and part.size >= LARGE and len(descriptors) < MAX_DESCRIPTORS:
            descriptor = part.descriptor()
        if descriptor is None:
            pieces += part.pieces()
        else:
            descriptors.append(descriptor)
        table.append((index, part.size, descriptor is not None))
    channel.send(kind, {**meta, "parts": table}, pieces, descriptors, deadline=deadline)


def read_parts(frame: Frame) -> dict[int, Packed]:
    """Return the values in a frame, by index in the group."""
    parts: dict[int, Packed] = {}
    start = 0
    descriptors = list(frame.descriptors)
    for index, size, is_shared in frame.meta.get("parts", ()):
        if is_shared:
            parts[index] = packed_from_descriptor(descriptors.pop(0), size)
        else:
            parts[index] = packed_from_bytes(frame.body[start : start + size])
            start += size
    for descriptor in descriptors:
        os.close(descriptor)
    return parts
