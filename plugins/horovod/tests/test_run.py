"""How other machines are reached."""

from __future__ import annotations

import pytest

from detcore.errors import WorkerError
from detcore_horovod._run import chief_address, interface_towards


def test_the_way_to_loopback_addresses() -> None:
    hosts = ["127.0.0.1", "127.0.0.2"]
    assert interface_towards(hosts) == "lo"
    assert chief_address(hosts) == "127.0.0.1"
    assert interface_towards(hosts[:1]) == "lo"
    with pytest.raises(WorkerError, match=r"'no-such\.invalid' has no address"):
        interface_towards(["no-such.invalid"])
