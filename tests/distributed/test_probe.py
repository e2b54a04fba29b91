"""Asking a rank where it is."""

from __future__ import annotations

import socket

from detcore.distributed.probe import SILENT, Answerer, query_locations
from detcore.distributed.wire import RankChannel


def test_probe_returns_line_or_silent() -> None:
    request, other_end = socket.socketpair()
    closed_channel, closed = socket.socketpair()
    closed.close()
    channels = {3: RankChannel(request), 5: RankChannel(closed_channel)}
    answerer = Answerer(RankChannel(other_end))
    try:
        answers = query_locations(channels, [3, 4, 5])
    finally:
        answerer.close()
        for channel in channels.values():
            channel.close()
    assert answers.keys() <= {3, 5}
    assert answers.get(5, SILENT) == SILENT
    # The thread that made the answerer is the one that asks.
    place = f"at {__file__}:"
    assert answers[3].startswith(place)
    assert answers[3].endswith("in test_probe_returns_line_or_silent")
