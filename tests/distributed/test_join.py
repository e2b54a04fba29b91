"""Joining a group, where the other side is gone."""

from __future__ import annotations

import socket
import time

import pytest

from detcore.distributed._join import _welcome_here
from detcore.distributed._wire import Channel, LinkLost


def test_welcoming_a_worker_that_died_is_a_failure() -> None:
    own, theirs = socket.socketpair()
    theirs.close()
    channel = Channel(own)
    try:
        with pytest.raises(LinkLost):
            _welcome_here(channel, None, time.monotonic() + 60.0)
    finally:
        channel.close()
