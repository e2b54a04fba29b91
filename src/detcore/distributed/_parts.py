"""Send the values of several ranks in one frame: small ones inline, large ones in shared memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from detcore.distributed._segments import Segments, Shared
from detcore.distributed._values import Inline, Packed
from detcore.distributed._wire import Channel, Frame

__all__ = ["Outgoing", "read_parts", "send_parts"]

Outgoing = Packed | Inline | Shared


def send_parts(
    channel: Channel,
    kind: int,
    meta: dict[str, Any],
    parts: Mapping[int, Outgoing],
    *,
    deadline: float,
) -> None:
    """Send a frame with values.

    Args:
        channel: The connection.
        kind: Kind of the frame.
        meta: Its other contents.
        parts: Index in the group -> value.
        deadline: On the clock of ``time.monotonic``.

    Raises:
        LinkLost: If the other end is gone.
    """
    pieces: list[Any] = []
    descriptors: list[int] = []
    table: list[tuple[int, ...]] = []
    for index, part in parts.items():
        if isinstance(part, Shared):
            descriptors.append(part.descriptor)
            table.append((index, part.size, part.lease, part.generation))
        elif isinstance(part, Packed):
            pieces += part.pieces
            table.append((index, part.size))
        else:
            pieces.append(part.data)
            table.append((index, part.data.nbytes))
    channel.send(kind, {**meta, "parts": table}, pieces, descriptors, deadline=deadline)


def read_parts(frame: Frame, segments: Segments | None) -> dict[int, Inline | Shared]:
    """Return the values in a frame, by index in the group."""
    parts: dict[int, Inline | Shared] = {}
    start = 0
    descriptors = list(frame.descriptors)
    for index, size, *lent in frame.meta.get("parts", ()):
        if lent and segments is not None:
            parts[index] = Shared(segments, descriptors.pop(0), size, *lent)
        else:
            parts[index] = Inline(frame.body[start : start + size], is_private=True)
            start += size
    for descriptor in descriptors:
        os.close(descriptor)
    return parts
